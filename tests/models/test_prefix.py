"""Prefix language models: the source's tokens see each other in both directions, the target's only what is before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import (
    BOS,
    EOS,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
)
from contract import assert_equal, real_logits
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Batch
from ostinato.decoding import search
from ostinato.errors import DataError
from ostinato.kernels import attend
from ostinato.models import LanguageModel, build_model
from ostinato.nn import attention

SENTENCES = [Sentence(None, [4, 5, 6, EOS, BOS, 7, 8], 4), Sentence(None, [6, EOS, BOS, 4], 2)]


def model_of(mask: str, relative: str = "none", **stack: Any) -> LanguageModel:
    attends = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}, "relative": {"kind": relative}}
    settings = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "mask": mask, "decoder": attends | stack}
    model = random_model(LanguageModelConfig.model_validate(settings))
    assert isinstance(model, LanguageModel)
    return model


def with_lengths(batch: Batch, length: int | None) -> Batch:
    lengths = None if length is None else torch.full((batch.n_sentences,), length)
    return replace(batch, prefix_lengths_B=lengths)


@pytest.mark.parametrize("relative", ["none", "window", "rotary"])
@pytest.mark.parametrize("length", [0, 1])
def test_a_prefix_of_no_or_one_token_is_the_causal_mask(relative: str, length: int) -> None:
    prefix, causal = model_of("prefix", relative), model_of("causal", relative)
    causal.load_state_dict(prefix.state_dict())
    for pad in (right_padded, left_padded):
        batch = with_lengths(pad(SENTENCES), length)
        for found, wanted in zip(real_logits(prefix, batch), real_logits(causal, batch), strict=True):
            assert_equal(found, wanted, f"prefix of {length}")


@draws(40)
@given(st.data())
def test_the_first_token_of_a_source_sees_its_last_one_in_a_prefix_model_only(data: st.DataObject) -> None:
    mask = data.draw(st.sampled_from(["prefix", "causal"]))
    # Every step attends, and nothing is cut off: what can be seen makes a difference.
    attends = {"n_heads": 2, "share": data.draw(st.sampled_from(["individual", "all"]))}
    model = model_of(
        mask,
        data.draw(st.sampled_from(["none", "window", "buckets", "rotary"])),
        self_attention=attends,
        norm={"placement": data.draw(st.sampled_from(["post", "pre"]))},
        ffn=data.draw(st.sampled_from([{"d_ff": 8}, {"d_ff": 8, "kind": "separable_conv"}])),
    )
    source = data.draw(st.lists(st.integers(4, 8), min_size=2, max_size=5))
    one, other = ([*source[:-1], last, EOS, BOS, 4] for last in (3, 4))
    n_prefix = len(source) + 1
    (before,) = real_logits(model, right_padded([Sentence(None, one, n_prefix)]))
    (after,) = real_logits(model, right_padded([Sentence(None, other, n_prefix)]))
    changed_T = (before - after).abs().amax(-1) > 1e-6
    n_alike = 0 if mask == "prefix" else len(source) - 1
    assert not bool(changed_T[:n_alike].any())
    assert bool(changed_T[n_alike:].all())


def test_the_begin_symbol_and_the_target_are_seen_by_no_token_before_them() -> None:
    model = model_of("prefix", "buckets")
    weights = model(right_padded(SENTENCES), request=["weights"]).stacks["decoder"].captures
    assert len(weights) == 2
    for weights_BHTS in weights.values():
        first, second = weights_BHTS.amin(1), weights_BHTS.amax(1)
        assert bool((first[0, :4, :4] > 0).all())
        assert bool((second[0, :4, 4:] == 0).all())
        assert bool((first[0, 4:].tril(4) > 0)[:, :4].all())
        assert bool((second[0].triu(1)[4:] == 0).all())
        assert bool((second[1, :2, 2:] == 0).all())


def test_buckets_know_both_directions_before_and_after_the_prefix() -> None:
    model = model_of("prefix", "buckets")
    stack = model.stacks["decoder"]
    assert stack.is_causal
    assert stack.has_prefix
    assert not model_of("causal", "buckets").stacks["decoder"].has_prefix
    (table,) = [p for name, p in model.named_parameters() if "table_RH" in name]
    logits = real_logits(model, right_padded(SENTENCES))
    (gradient_RH,) = torch.autograd.grad(sum(row.sum() for row in logits), [table])
    one_way = table.shape[0] // 2
    used = gradient_RH.abs().amax(1) > 0
    assert used[1:4].all()
    assert used[one_way + 1 : one_way + 4].all(), "keys to the right"
    assert not used[7:one_way].any()
    assert not used[one_way + 4 :].any()


@pytest.mark.parametrize("pad", [right_padded, left_padded])
def test_a_prefix_in_pieces_is_refused(pad: Any) -> None:
    model, batch = model_of("prefix"), pad(SENTENCES)
    ids_BT, keep_BT = batch.target.ids_BT, batch.target.keep_BT
    n_columns = 4 if pad is right_padded else 5
    with pytest.raises(DataError, match=r"must hold the whole prefix.*up to 4 tokens, a step of"):
        model.step(ids_BT[:, : n_columns - 1], model.encode(batch), keep_BT[:, : n_columns - 1])
    cache = model.encode(batch)
    model.step(ids_BT[:, :n_columns], cache, keep_BT[:, :n_columns])
    assert cache.prefix_lengths_B is None
    with pytest.raises(DataError, match="a step of 3"):
        model.step(ids_BT[:, :3], model.encode(batch))


def test_a_prefix_model_refuses_a_batch_that_does_not_say_where_prefixes_end() -> None:
    model, batch = model_of("prefix"), with_lengths(right_padded(SENTENCES), None)
    for run in (model, model.encode):
        with pytest.raises(DataError, match="needs the length of every prefix; this batch has no sources"):
            run(batch)
    assert model_of("causal")(batch).logits_BTV.shape == (2, 7, 9)


def test_all_of_a_prompt_is_the_prefix() -> None:
    model, prompts = model_of("prefix"), [[BOS, 4, 5, 6], [BOS, 7]]
    given = left_padded([Sentence(None, ids) for ids in prompts])
    found = search(model, with_lengths(given, None), DecodingConfig(max_length=3), given.target)
    for prompt, one in zip(prompts, found, strict=True):
        whole, n = right_padded([Sentence(None, [*prompt, *one.ids])]), len(prompt)
        scores = {}
        for length in (n, 0):
            log_p_TV = model(with_lengths(whole, length)).logits_BTV[0].log_softmax(-1).detach()
            scores[length] = sum(float(log_p_TV[n - 1 + i, token]) for i, token in enumerate(one.ids))
        assert len(one.ids) == 3
        assert one.log_prob == pytest.approx(scores[n], abs=1e-5)
        assert one.log_prob != pytest.approx(scores[0], abs=1e-3)


def test_a_cache_that_is_thinned_out_before_its_first_step_keeps_its_prefixes() -> None:
    model, batch = model_of("prefix"), left_padded(SENTENCES)
    (_, wanted) = real_logits(model, batch)
    cache = model.encode(batch)
    cache.keep(torch.tensor([1]))
    found = model.step(batch.target.ids_BT[1:], cache, batch.target.keep_BT[1:])
    assert_equal(found[0], wanted[-1], "the sentence that stayed")


@pytest.mark.parametrize(("mask", "is_fast"), [("causal", True), ("prefix", False)])
def test_only_a_plain_causal_pass_needs_no_mask(mask: str, is_fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, bool]] = []

    def spy(q: Any, k: Any, v: Any, mask: Any, scale: float, *, is_causal: bool, **options: Any) -> torch.Tensor:
        calls.append((mask, is_causal))
        return attend(q, k, v, mask, scale, is_causal=is_causal, **options)

    monkeypatch.setattr(attention, "attend", spy)
    model_of(mask)(right_padded(SENTENCES[:1]))
    assert [is_causal for _, is_causal in calls] == [is_fast] * 2
    assert [mask is None for mask, _ in calls] == [is_fast] * 2


@draws(15)
@given(st.data())
def test_a_causal_model_reads_pairs_as_it_reads_texts(data: st.DataObject) -> None:
    config = data.draw(any_architecture(kind="language_model")).model_copy(update={"mask": "causal"})
    batch = right_padded(data.draw(sentences(config)))
    model = build_model(config).eval()
    assert torch.equal(model(batch).logits_BTV, model(with_lengths(batch, 1)).logits_BTV)
