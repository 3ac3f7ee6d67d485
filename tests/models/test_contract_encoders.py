"""The contract for encoder-only models: any plan, experts, halting and positions under every head."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_contract_bytes import kept_by_autograd
from test_contract_equivalence import assert_same_depths
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from architectures import (
    BOS,
    EOS,
    HEADS,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    texts,
)
from contract import assert_all_equal, assert_equal, gradients, real_logits, real_ones
from drawn_ways import exit_of
from haltings import LENGTHS, never_halting
from ostinato.budget import MacCounter, count_bytes, count_macs, count_parameters, expected_depths
from ostinato.budget.sizes import choosing_heads, planned_uses
from ostinato.config.experts import RoutedConfig
from ostinato.config.halting import (
    ActConfig,
    ChoosingConfig,
    ExitConfig,
    HaltingConfig,
    NoHaltingConfig,
    SelectConfig,
    StickBreakingConfig,
    TokenChoiceConfig,
)
from ostinato.config.model import ClassificationHeadConfig, EncoderConfig, HeadConfig, TaggingHeadConfig
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, DataError
from ostinato.kernels import combine, dispatch
from ostinato.models import Encoder, Model, build_model, load_model, save_model
from reference.encoder import encoder_twin
from running import run_as

ENCODERS = any_architecture(kind="encoder")
RULES: list[HaltingConfig] = [
    *LENGTHS,
    ActConfig(epsilon=0.3),
    ActConfig(scope="global"),
    StickBreakingConfig(threshold=0.9),
    ExitConfig(threshold=0.5),
    SelectConfig(),
    TokenChoiceConfig(),
]
MEAN, TAGS = ClassificationHeadConfig(pooling="mean"), TaggingHeadConfig()
of_every_head = pytest.mark.parametrize(
    ("head", "mask", "n_types"),
    [*((head, "none", 2 * (i % 2)) for i, head in enumerate(HEADS)), (MEAN, "causal", 2), (TAGS, "causal", 0)],
    ids=lambda one: getattr(one, "kind", None),
)


def encoders(head: HeadConfig, mask: str, n_types: int) -> st.SearchStrategy[EncoderConfig]:
    """Draw encoders with a head, a mask and token types."""

    def fits(config: EncoderConfig) -> bool:
        return mask == "none" or getattr(config.encoder.halting, "scope", "token") == "token"

    drawn = any_architecture(kind="encoder", heads=[head]).filter(fits)
    return drawn.map(lambda config: config.model_copy(update={"mask": mask, "n_token_types": n_types}))


def encoders_that_halt(rule: HaltingConfig) -> st.SearchStrategy[EncoderConfig]:
    """Draw encoders that can have a halting rule, and give it to them."""

    def fits(config: EncoderConfig) -> bool:
        stack, is_length = config.encoder, rule.kind == "length"
        if isinstance(rule, ChoosingConfig) and stack.ffn.kind == "separable_conv":
            return False
        if getattr(rule, "scope", "token") == "global" and config.mask == "causal":
            return False
        by_time = any(one.modulation.kind == "by_time" for one in stack.segments)
        return not by_time if is_length else not any(one.states for one in stack.segments)

    def with_rule(config: EncoderConfig) -> EncoderConfig:
        return config.model_copy(update={"encoder": config.encoder.model_copy(update={"halting": rule})})

    return any_architecture(kind="encoder", halting=st.just(NoHaltingConfig())).filter(fits).map(with_rule)


def _weights(logits: list[Tensor]) -> list[Tensor]:
    """Return a random weight for every logit."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in logits]


def check_twin(model: Encoder, batch: list[Sentence], padded: Batch) -> None:
    """Compare logits, depths and gradients with those of the per-token twin."""
    types = [[int(t >= (one.n_prefix or 0)) for t in range(len(one.target))] for one in batch]
    types_BT = torch.zeros_like(padded.target.ids_BT)
    for row, keep, own in zip(types_BT, padded.target.keep_BT, types, strict=True):
        row[keep] = torch.tensor(own)
    output = model(padded, token_types=types_BT if model.config.n_token_types else None)
    logits = real_ones(output.logits_BTV, padded, model.config.reads)
    twins = [encoder_twin(model, one, own) for one, own in zip(batch, types, strict=True)]
    expected, depths = [found for found, _ in twins], [depth["encoder"] for _, depth in twins]
    for i, (found, wanted) in enumerate(zip(logits, expected, strict=True)):
        assert_equal(found, wanted, f"logits of sentence {i}")
    stack = output.stacks["encoder"]
    assert_same_depths(stack.halting, padded.target.keep_BT, depths)
    weights = _weights(logits)
    if stack.depth_cost is not None:
        logits.append(stack.depth_cost)
        expected.append(torch.stack([cost for one in depths for cost in one.costs() or ()]).mean())
        assert_equal(logits[-1], expected[-1], "cost of depth")
        weights.append(torch.tensor(2.0, dtype=torch.float64))
    assert_all_equal(gradients(model, logits, weights), gradients(model, expected, weights))


@pytest.mark.sampled
@of_every_head
@draws(8, quick=2)
@given(data=st.data())
def test_an_encoder_equals_its_per_token_twin_in_logits_depths_and_all_gradients(
    head: Any, mask: str, n_types: int, data: st.DataObject
) -> None:
    model = random_model(data.draw(encoders(head, mask, n_types)))
    batch = data.draw(texts(model.config, max_sentences=2))
    check_twin(model, batch, data.draw(st.sampled_from([right_padded, left_padded]))(batch))


@pytest.mark.sampled
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@draws(6, quick=1)
@given(data=st.data())
def test_an_encoder_halts_as_its_per_token_twin(rule: Any, data: st.DataObject) -> None:
    model = random_model(data.draw(encoders_that_halt(rule)))
    batch = data.draw(texts(model.config))
    check_twin(model, batch, left_padded(batch))


@of_every_head
@draws(4)
@given(data=st.data())
def test_padding_and_other_sentences_change_no_logit_and_no_gradient(
    head: Any, mask: str, n_types: int, data: st.DataObject
) -> None:
    config = data.draw(encoders(head, mask, n_types))
    batch = data.draw(texts(config))
    extra, fill = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    model = random_model(config)
    plain = real_logits(model, right_padded(batch))
    weights = _weights(plain)
    expected = gradients(model, plain, weights)
    for name, padded in {"right": right_padded(batch, extra, fill), "left": left_padded(batch, extra, fill)}.items():
        logits = real_logits(model, padded)
        for found, wanted in zip(logits, plain, strict=True):
            assert_equal(found, wanted, f"padding on the {name}")
        assert_all_equal(gradients(model, logits, weights), expected)
    for i, sentence in enumerate(batch):
        (alone,) = real_logits(model, right_padded([sentence]))
        assert_equal(plain[i], alone, "in a batch")


@pytest.mark.sampled
@of_every_head
@draws(4)
@given(data=st.data())
def test_tokens_and_sentences_that_stop_by_a_criterion_do_so_alone_as_in_any_batch(
    head: Any, mask: str, n_types: int, data: st.DataObject
) -> None:
    model = data.draw(encoders(head, mask, n_types).map(random_model).filter(exit_of))
    batch = data.draw(texts(model.config))
    run_as(model, **exit_of(model), compaction="never")
    expected = real_logits(model, right_padded(batch))
    weights = _weights(expected)
    of_all = gradients(model, expected, weights)
    run_as(model, compaction="always")
    for padded in (right_padded(batch, 2), left_padded(batch, 1)):
        logits = real_logits(model, padded)
        for found, wanted in zip(logits, expected, strict=True):
            assert_equal(found, wanted, "padded and gathered")
        assert_all_equal(gradients(model, logits, weights), of_all)
    for sentence, wanted in zip(batch, expected, strict=True):
        (alone,) = real_logits(model, right_padded([sentence]))
        assert_equal(alone, wanted, "alone")


@draws(10)
@given(st.data())
def test_every_token_sees_the_others_in_both_directions(data: st.DataObject) -> None:
    stack = data.draw(ENCODERS.filter(lambda c: c.reads == "masked" and _attends(c)))
    batch = right_padded([Sentence(None, [BOS, 2, 3, EOS])])
    changed = replace(batch, target=replace(batch.target, ids_BT=torch.tensor([[BOS, 2, 4, EOS]])))
    model = random_model(stack)
    run_as(model, halting=False)
    before, after = model(batch).logits_BTV[0], model(changed).logits_BTV[0]
    # Exactly: where attention is as good as certain, what it sees of the others is little.
    assert not torch.equal(before[0], after[0])
    assert not torch.equal(before[3], after[3])


@draws(20)
@given(st.data())
def test_a_token_of_a_causal_encoder_sees_none_after_it(data: st.DataObject) -> None:
    model = random_model(data.draw(ENCODERS.filter(lambda c: c.mask == "causal" and c.reads == "tagging")))
    batch = right_padded([Sentence(None, [BOS, 2, 3, 2, EOS])])
    changed = replace(batch, target=replace(batch.target, ids_BT=torch.tensor([[BOS, 2, 3, 4, 4]])))
    before, after = model(batch).logits_BTV[0], model(changed).logits_BTV[0]
    assert_equal(before[:3], after[:3], "what comes after")
    assert not torch.equal(before[4], after[4])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"head": {"kind": "masked"}},
            "mask is 'causal': with head.kind tagging, or classification with pooling=mean, only: must be none",
        ),
        ({"head": {"kind": "classification", "pooling": "first"}}, "must be none"),
        (
            {"head": {"kind": "tagging"}, "encoder": {"halting": {"kind": "act", "scope": "global"}}},
            "encoder.halting.scope is 'global': its one probability a sentence is the mean over all tokens",
        ),
    ],
)
def test_what_cannot_be_where_no_token_sees_a_later_one_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        EncoderConfig.model_validate({"mask": "causal", **settings})


def _attends(config: EncoderConfig) -> bool:
    return not config.encoder.self_attention.is_absent and "self_attention" in {
        use.kind for use in config.plans()["encoder"].steps[-1].uses
    }


@draws(10)
@given(st.data())
def test_an_encoder_survives_its_file(data: st.DataObject) -> None:
    config = data.draw(ENCODERS)
    batch = right_padded(data.draw(texts(config)))
    model = random_model(config).float()
    with TemporaryDirectory() as folder:
        save_model(model, Path(folder))
        loaded = load_model(Path(folder))
    assert isinstance(loaded, Encoder)
    assert loaded.config == config
    assert torch.equal(loaded(batch).logits_BTV, model(batch).logits_BTV)


@draws(25)
@given(ENCODERS)
def test_parameters_of_an_encoder_are_counted_exactly(config: EncoderConfig) -> None:
    model, count = build_model(config), count_parameters(config)
    assert count.stored == model.n_parameters() == sum(count.by_part.values())
    head = count.by_part.get("head", 0)
    assert head == sum(p.numel() for name, p in model.named_parameters() if name.startswith("head."))


def _counted(model: Model, run: Any) -> float:
    run_as(model, expert_backend="loop")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 2


def _sums_by_gates(config: EncoderConfig, n_tokens: int, n_rounds: int) -> float:
    """Count the sums weighted by gates in so many rounds, which a budget counts as element-wise."""
    found = 0.0
    for planned in planned_uses(config):
        settings = planned.sub
        if isinstance(settings, RoutedConfig) and planned.round < n_rounds:
            k = settings.top_k * choosing_heads(settings)
            to = dispatch(torch.arange(k).expand(n_tokens, k), k)
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                combine(torch.ones(n_tokens * k, config.d_model), torch.ones(n_tokens, k), to)
            found += counter.get_total_flops() / 2
    return found


@of_every_head
@draws(4)
@given(data=st.data())
def test_macs_of_an_encoder_agree_with_the_flop_counter(
    head: Any, mask: str, n_types: int, data: st.DataObject
) -> None:
    config, length = data.draw(encoders(head, mask, n_types)), data.draw(st.integers(3, 9))
    batch = right_padded([Sentence(None, [BOS] + [3] * (length - 1), 1)])
    model = never_halting(build_model(config), keeps_lengths=True)
    depth = expected_depths(config, source_length=length)["encoder"]
    measured = _counted(model, lambda: model(batch)) - _sums_by_gates(config, length, depth.deepest)
    count = count_macs(config, 1, length)
    assert count.total == sum(count.by_part.values())
    assert count.total == pytest.approx(measured, rel=0.01)
    assert count.per_generated_token == count.per_source_token == 0
    depths = {"encoder": [0] * (depth.deepest - 1) + [length] + [0] * (depth.rounds - depth.deepest)}
    assert MacCounter(config).count(depths).realised == count.total


@of_every_head
@draws(4)
@given(data=st.data())
def test_activations_of_an_encoder_are_what_autograd_keeps(
    head: Any, mask: str, n_types: int, data: st.DataObject
) -> None:
    drawn, n_sentences = data.draw(encoders(head, mask, n_types)), data.draw(st.integers(1, 3))
    config = EncoderConfig.model_validate(_grow(drawn.model_dump()) | {"dropout": 0.1})
    check_activations(config, n_sentences, bar=0.03)


@of_every_head
@pytest.mark.parametrize("share", [[None, None, 0], [None, 0, None], [0, None, None], [None, None, None]], ids=str)
def test_states_that_a_round_without_sub_layers_leaves_as_they_were_are_counted_once(
    head: Any, mask: str, n_types: int, share: list[int | None]
) -> None:
    stack = {"n_steps": 3, "self_attention": {"share": "none"}, "ffn": {"share": share, "d_ff": 20}}
    for rule in ("exit", "act", "stick_breaking"):
        own = stack | {"halting": {"kind": rule}, "positions": {"kind": "none"}}
        config = _tiny(d_model=128, head=head.model_dump(), mask=mask, n_token_types=n_types, encoder=own)
        labels = 3 if head.kind in ("classification", "tagging") else None
        check_activations(config.model_copy(update={"n_labels": labels}), 2, bar=0.005)


def check_activations(config: EncoderConfig, n_sentences: int, bar: float) -> None:
    """Compare what is counted with what autograd keeps."""
    batch = right_padded([Sentence(None, [BOS] + [3] * 11, 2) for _ in range(n_sentences)])
    n_labels = {"classification": 1, "span": 2}.get(config.reads, 12)
    labels = torch.full((n_sentences, n_labels), 2 if config.reads == "span" else 1)
    batch = replace(batch, labels_BT=labels, loss_mask_BT=torch.ones_like(labels, dtype=torch.bool))
    counted = count_bytes(config, 1, 12, batch_size=n_sentences)
    assert counted.cache == 0
    assert counted.activations == pytest.approx(kept_by_autograd(config, batch, smoothing=0.0), rel=bar)


def _grow(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings at eight times the widths."""
    grown = {key: _grow(value) if isinstance(value, dict) else value for key, value in settings.items()}
    return grown | {key: 8 * grown[key] for key in ("d_model", "d_ff", "d_head") if grown.get(key)}


# --- heads -----------------------------------------------------------------------------------------------------------


def _tiny(**changes: Any) -> EncoderConfig:
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    settings = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "encoder": stack} | changes
    return EncoderConfig.model_validate(settings)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.kind}-{getattr(head, 'pooling', '')}")
def test_heads_do_to_states_what_their_formulas_say(head: Any) -> None:
    n_labels = 3 if head.kind in ("classification", "tagging") else None
    model = random_model(_tiny(head=head.model_dump(), n_labels=n_labels))
    assert isinstance(model, Encoder)
    batch = right_padded([Sentence(None, [BOS, 4, 5, EOS, 6, 7, EOS], 4), Sentence(None, [BOS, 4, EOS], 1)])
    output = model(batch)
    states_BTD, keep_BT = output.stacks["encoder"].states_BTD, batch.target.keep_BT
    if model.head is None:
        expected = states_BTD @ model.target_weight.T
    else:
        read = states_BTD
        if head.kind == "classification":
            mean_BD = torch.stack([row[keep].mean(0) for row, keep in zip(states_BTD, keep_BT, strict=True)])
            read = (states_BTD[:, 0] if head.pooling == "first" else mean_BD)[:, None]
        expected = read @ model.head.weight.T + model.head.bias
    if head.kind == "span":
        # Tokens 4 and 5 of the first, 1 of the second: what lies between the prefix and the last end symbol.
        first, second = output.logits_BTV
        assert_equal(first[:, 4:6], expected[0, 4:6].T, "scores of the first passage")
        assert_equal(second[:, 1:2], expected[1, 1:2].T, "scores of the second passage")
        outside = torch.cat([first[:, :4], first[:, 6:], second[:, :1], second[:, 2:]], 1)
        assert bool((outside == torch.finfo(outside.dtype).min).all())
    else:
        assert_equal(output.logits_BTV, expected, head.kind)


def test_labels_are_read_from_their_places_only() -> None:
    model = random_model(_tiny())
    batch = right_padded([Sentence(None, [BOS, 4, 5, EOS]), Sentence(None, [BOS, 6, EOS])])
    whole = model(batch).logits_BTV
    places_BL = torch.tensor([[1, 2], [1, 0]])
    picked = model(replace(batch, places_BL=places_BL)).logits_BTV
    torch.testing.assert_close(picked[0], whole[0, 1:3])
    torch.testing.assert_close(picked[1, 0], whole[1, 1])


def test_a_tied_masked_head_has_no_parameters_and_the_mask_symbol_has_the_last_row() -> None:
    tied, apart = build_model(_tiny()), build_model(_tiny(tie_embeddings="none"))
    assert isinstance(tied, Encoder)
    assert apart.n_parameters() - tied.n_parameters() == 9 * 8
    assert tied.mask_id == 8
    assert _tiny().vocabulary_sizes(8, 8) == {"vocab_size": 9}


def test_an_encoder_refuses_to_write_and_settings_of_another_head() -> None:
    model = build_model(_tiny())
    batch = right_padded([Sentence(None, [BOS, 4, EOS])])
    with pytest.raises(DataError, match=r"writes no text$"):  # nor has a masked head predictions to be written
        model.encode(batch)
    labels = build_model(_tiny(head={"kind": "tagging"}, n_labels=2))
    with pytest.raises(DataError, match=r"writes no text: .*`ostinato evaluate RUN --predictions FILE` writes$"):
        labels.encode(batch)
    with pytest.raises(ConfigError, match="has no effect") as caught:
        _tiny(head={"kind": "span"}, tie_embeddings="none", n_labels=2)
    assert {problem.key for problem in caught.value.problems} == {"tie_embeddings", "n_labels"}
    with pytest.raises(ConfigError, match="n_labels"):
        build_model(_tiny(head={"kind": "tagging"}))
    with pytest.raises(ConfigError, match="n_labels"):
        count_parameters(_tiny(head={"kind": "classification"}))


@pytest.mark.parametrize("variant", ["shared-enc", "no-enc", "one-wide"])
def test_wide_feed_forward_variants_apply_to_an_encoder(variant: str) -> None:
    stack = {"n_steps": 3, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    config = _tiny(encoder=stack, ffn_variant=variant)
    widths = [config.stacks()["encoder"].ffn.d_ff for _ in config.plans()["encoder"].names("ffn")]
    assert widths == {"shared-enc": [8], "no-enc": [], "one-wide": [24]}[variant]
