"""Contract 4, 5, 6, 7: nothing but its own real tokens, and for a causal model only earlier ones, changes a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from architectures import (
    BOS,
    EOS,
    Model,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
)
from contract import assert_all_equal, assert_equal, gradients, real_logits, weights_of
from loops import ADD, CROSS, PRE, RAGGED, STEPS, loop, rule
from ostinato.config.decoding import DecodingConfig
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    GateConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
)
from ostinato.config.halting import ActConfig, HaltingConfig, NoHaltingConfig, StickBreakingConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.config.training import ConsistencyConfig, DepthCostConfig, RoundLossConfig, TrainingConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.decoding.search import search_n_best
from ostinato.models import build_model
from ostinato.models.losses import depth_cost
from ostinato.nn import positions
from ostinato.training.optim import build_optimizer
from ostinato.training.update import Updater

pytestmark = pytest.mark.device

NONE = NoHaltingConfig()

# --- padding ---------------------------------------------------------------------------------------------------------


def check_padding(model: Model, batch: list[Sentence], extra: int, fill: int) -> None:
    """Compare logits and gradients with padding on either side and without."""
    plain = real_logits(model, right_padded(batch))
    weights = weights_of(batch, plain[0].shape[1])
    expected = gradients(model, plain, weights)
    right, left = right_padded(batch, extra, fill), left_padded(batch, extra, fill)
    mixed = replace(left, target=right.target, labels_BT=right.labels_BT, loss_mask_BT=right.loss_mask_BT)
    for name, padded in {"right": right, "left": left, "source left, target right": mixed}.items():
        logits = real_logits(model, padded)
        for found, wanted in zip(logits, plain, strict=True):
            assert_equal(found, wanted, f"padding on the {name}")
        assert_all_equal(gradients(model, logits, weights), expected)


@draws(40, quick=12)
@given(st.data())
def test_padding_changes_no_logit_and_no_gradient(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch = data.draw(sentences(config))
    check_padding(random_model(config), batch, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4)))


@draws(10)
@given(st.data())
def test_a_row_of_padding_only_harms_nobody(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch = data.draw(sentences(config))
    model = random_model(config)
    plain = real_logits(model, right_padded(batch))
    weights = weights_of(batch, plain[0].shape[1])
    with_empty = _with_an_empty_row(right_padded(batch))
    logits_BTV = model(with_empty).logits_BTV
    assert bool(logits_BTV.isfinite().all())
    logits = [row[keep] for row, keep in zip(logits_BTV, with_empty.target.keep_BT, strict=True)][:-1]
    for found, wanted in zip(logits, plain, strict=True):
        assert_equal(found, wanted, "beside an empty row")
    found = gradients(model, logits, weights)
    assert all(bool(g.isfinite().all()) for g in found.values())
    assert_all_equal(found, gradients(model, plain, weights))


def _with_an_empty_row(batch: Batch) -> Batch:
    def add(tokens: Tokens) -> Tokens:
        ids, keep = tokens.ids_BT, tokens.keep_BT
        return Tokens(torch.cat([ids, ids[:1] * 0]), torch.cat([keep, keep[:1] & False]))

    source = None if batch.source is None else add(batch.source)
    labels = torch.cat([batch.labels_BT, batch.labels_BT[:1]])
    prefixes = batch.prefix_lengths_B
    return replace(
        batch,
        target=add(batch.target),
        source=source,
        labels_BT=labels,
        loss_mask_BT=add(batch.target).keep_BT,
        prefix_lengths_B=None if prefixes is None else torch.cat([prefixes, prefixes[:1]]),
    )


# --- batch composition -----------------------------------------------------------------------------------------------


def check_company(model: Model, batch: list[Sentence], order: Sequence[int]) -> None:
    """Compare logits of sentences alone, in a batch, and in one of another order."""
    together = real_logits(model, right_padded(batch))
    shuffled = real_logits(model, right_padded([batch[i] for i in order]))
    for i, sentence in enumerate(batch):
        (alone,) = real_logits(model, right_padded([sentence]))
        assert_equal(together[i], alone, "in a batch")
        assert_equal(shuffled[list(order).index(i)], alone, "in another order")


@draws(30, quick=10)
@given(st.data())
def test_a_sentence_gets_the_same_logits_alone_and_in_any_batch(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch = data.draw(sentences(config, max_sentences=4))
    check_company(random_model(config), batch, data.draw(st.permutations(range(len(batch)))))


@draws(30, quick=10)
@given(st.data())
def test_a_sentence_gets_the_same_outputs_and_scores_of_a_search_alone_and_in_any_batch(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch = data.draw(sentences(config, max_sentences=4).filter(lambda drawn: len(drawn) > 1))
    order = data.draw(st.permutations(range(len(batch))))
    pad, extra = data.draw(st.sampled_from([right_padded, left_padded])), data.draw(st.integers(0, 2))
    model = random_model(config)
    # Texts are nothing but their beginnings, which the search goes on from; pairs begin behind their sources.
    begun = [Sentence(None, sentence.target[sentence.n_prefix or 0 :]) for sentence in batch]
    for settings in ({"strategy": "greedy"}, {"strategy": "beam", "beam": 3, "n_best": 3}):
        # Limits by the source, so that sentences leave the batch before others.
        decoding = DecodingConfig.model_validate(settings | {"max_length": 1, "max_length_ratio": 1.0})
        shuffled, prefix = [batch[i] for i in order], left_padded([begun[i] for i in order]).target
        together = search_n_best(model, pad(shuffled, extra), decoding, prefix)
        for i, found in zip(order, together, strict=True):
            (alone,) = search_n_best(model, right_padded([batch[i]]), decoding, right_padded([begun[i]]).target)
            assert [one.ids for one in found] == [one.ids for one in alone]
            assert [one.score for one in found] == pytest.approx([one.score for one in alone], rel=1e-5, abs=1e-5)


# --- losses of rounds ------------------------------------------------------------------------------------------------

LOOPED = STEPS | PRE | loop(inject=ADD) | rule("exit")
"""Rounds that every loss of rounds can read, and of which a second pass can leave some out."""
LOSSES_OF_ROUNDS: dict[str, dict[str, Any]] = {
    "window": {"round_loss": RoundLossConfig(kind="window")},
    "weights": {"round_loss": RoundLossConfig(kind="weights", weights=[0.5, 0.0, 2.0])},
    "drawn": {"round_loss": RoundLossConfig(kind="drawn")},
    "exit": {"round_loss": RoundLossConfig(kind="exit"), "halting": DepthCostConfig(weight=0.3)},
    "improvement": {"round_loss": RoundLossConfig(kind="improvement")},
    "states": {"consistency": ConsistencyConfig(states=0.3)},
    "second pass": {"consistency": ConsistencyConfig(loss=0.3)},
}
BATCHES: dict[str, list[Batch]] = {
    "right padding": [right_padded(RAGGED, 2, fill=4)],
    "left padding": [left_padded(RAGGED, 2, fill=4)],
    "alone": [right_padded([sentence]) for sentence in RAGGED],
}


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("name", LOSSES_OF_ROUNDS)
def test_padding_and_other_sentences_change_no_loss_of_rounds_and_no_gradient(name: str, batches: str) -> None:
    sizes = {"d_model": 32, "dropout": 0.0, "source_vocab_size": 30, "target_vocab_size": 30}
    config = Seq2SeqConfig.model_validate(sizes | {"encoder": LOOPED, "decoder": LOOPED | CROSS})

    def update(given: list[Batch]) -> tuple[float, dict[str, Tensor]]:
        model = random_model(config).train()
        settings = TrainingConfig(label_smoothing=0.1, **LOSSES_OF_ROUNDS[name])
        updater = Updater(model, build_optimizer(model, settings.optimizer), settings)
        loss = sum(updater.accumulate(given, 3).losses)
        return loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    (expected, gradients_expected), (found, gradients_found) = update([right_padded(RAGGED)]), update(BATCHES[batches])
    assert found == pytest.approx(expected, rel=1e-5)
    assert_all_equal(gradients_found, gradients_expected)


# --- causality -------------------------------------------------------------------------------------------------------


@draws(30)
@given(st.data())
def test_the_past_never_depends_on_the_future(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    (sentence,) = data.draw(sentences(config, max_sentences=1))
    rows = config.vocab_size if isinstance(config, LanguageModelConfig) else config.target_vocab_size
    future = data.draw(st.lists(st.integers(EOS, (rows or 0) - 1), min_size=1, max_size=4))
    # In a prefix the past may depend on the future, so the cut comes after it.
    n_past = data.draw(st.integers(max(1, sentence.n_prefix or 0), len(sentence.target)))
    model = random_model(config)
    (before,) = real_logits(model, right_padded([sentence]))
    other = sentence.with_target(sentence.target[:n_past] + future)
    (after,) = real_logits(model, right_padded([other]))
    assert_equal(after[:n_past], before[:n_past], f"the first {n_past} logits")


# --- no state --------------------------------------------------------------------------------------------------------

Weights = dict[str, Tensor]


@draws(20)
@given(st.data())
def test_two_evaluations_agree_and_leave_nothing_behind(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch = right_padded(data.draw(sentences(config)))
    model = random_model(config)
    before = list(_belongings(model))
    with torch.inference_mode():
        first, second = model(batch).logits_BTV, model(batch).logits_BTV
        cache = model.encode(batch)
        model.step(batch.target.ids_BT, cache, batch.target.keep_BT)
    assert torch.equal(first, second)
    assert list(_belongings(model)) == before


def _belongings(model: Model) -> Iterator[tuple[str, int]]:
    """Yield the name and identity of everything that modules and stacks hold."""
    owners: list[Any] = [*model.modules(), *model.stacks.values()]
    for number, owner in enumerate(owners):
        for name, value in vars(owner).items():
            inner: dict[Any, Any] = value if isinstance(value, dict) else {}
            yield f"{number}.{name}", id(value)
            yield from ((f"{number}.{name}.{key}", id(item)) for key, item in inner.items())


def _small(d_model: int = 8, *, has_experts: bool = False, halting: HaltingConfig = NONE) -> LanguageModelConfig:
    stack = StackConfig(
        n_steps=2,
        self_attention=AttentionConfig(n_heads=2, dropout=0.2),
        ffn=DenseFeedForwardConfig(d_ff=12, dropout=0.2),
    )
    if has_experts:
        sampled: dict[str, Any] = {"n_experts": 4, "top_k": 2, "gate": GateConfig(n_sampled=1)}
        stack = StackConfig(
            n_steps=2,
            self_attention=ExpertAttentionConfig(
                n_heads=2, dropout=0.2, router=MlpRouterConfig(dropout=0.2), **sampled
            ),
            ffn=ExpertFeedForwardConfig(d_ff=12, dropout=0.2, router=HypersphereRouterConfig(), **sampled),
        )
    stack = stack.model_copy(update={"halting": halting})
    return LanguageModelConfig(d_model=d_model, dropout=0.2, vocab_size=9, decoder=stack)


def _train(between: Callable[[Model], None], config: Seq2SeqConfig | LanguageModelConfig, batch: Batch) -> Weights:
    """Return the weights after two updates with dropout, having called `between` after the first."""
    torch.manual_seed(3)
    model = build_model(config).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for update in range(2):
        output = model(batch)
        loss = nn.functional.cross_entropy(output.logits_BTV[batch.loss_mask_BT], batch.labels_BT[batch.loss_mask_BT])
        if (cost := depth_cost(output)) is not None:
            loss = loss + 0.1 * cost
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if update == 0:
            between(model)
    return {name: p.detach() for name, p in model.named_parameters()}


def check_evaluation(
    config: Seq2SeqConfig | LanguageModelConfig, batch: list[Sentence], other: list[Sentence]
) -> Weights:
    """Compare the weights after two updates, between which other sentences are evaluated, or are not."""

    def evaluate(model: Model) -> None:
        model.eval()
        padded = right_padded(other)
        with torch.inference_mode():
            model(padded)
            model.step(padded.target.ids_BT, model.encode(padded), padded.target.keep_BT)
        model.train()

    plain, evaluated = (_train(between, config, right_padded(batch)) for between in (lambda model: None, evaluate))
    assert all(torch.equal(plain[name], evaluated[name]) for name in plain)
    return plain


@pytest.mark.parametrize("halting", [NONE, ActConfig(), StickBreakingConfig(dropout=0.2)])
@pytest.mark.parametrize("has_experts", [False, True])
def test_an_evaluation_between_two_updates_changes_nothing(has_experts: bool, halting: HaltingConfig) -> None:
    batch = [Sentence(None, [BOS, 4, 5, 6]), Sentence(None, [BOS, 7])]
    other = [Sentence(None, [BOS, 8, 8, 8, 8, 8])]
    plain = check_evaluation(_small(has_experts=has_experts, halting=halting), batch, other)
    assert plain["target_weight"].isfinite().all()


@draws(40, quick=10)
@given(st.data())
def test_an_evaluation_between_two_updates_of_any_model_changes_nothing(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    batch, other = data.draw(sentences(config)), data.draw(sentences(config))
    dropped = {"dropout": 0.2}
    stacks = {
        name: stack.model_copy(update={kind: sub.model_copy(update=dropped) for kind, sub in stack.sub_layers()})
        for name, stack in config.stacks().items()
    }
    check_evaluation(config.model_copy(update=dropped | stacks), batch, other)


def test_training_works_after_an_evaluation_made_the_position_table() -> None:
    positions._table.cache_clear()  # so that the table is first made here, in inference mode
    model = build_model(_small())
    batch = right_padded([Sentence(None, [BOS, 4, 5])])
    with torch.inference_mode():
        expected = model.eval()(batch).logits_BTV
    logits_BTV = model(batch).logits_BTV
    logits_BTV.sum().backward()
    torch.testing.assert_close(logits_BTV, expected)
    assert all(p.grad is not None for p in model.parameters())
