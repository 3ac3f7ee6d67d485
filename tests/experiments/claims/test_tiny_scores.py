"""Scores of tiny versions: the same whatever ran before, and others where data, decoding or metrics are."""

from __future__ import annotations

import pytest
import torch

from ostinato.config.files import shipped_files
from ostinato.data.batching import TrainingBatches
from ostinato.decoding.search import search
from ostinato.experiments.claims.fingerprint import is_near
from ostinato.experiments.claims.tiny_scores import tiny_scores
from ostinato.metrics import ExactMatch
from ostinato.tasks.recipes import load_recipe

PAIRS = "algorithmic/reverse-universal"
NAMES = [
    *(PAIRS, "relay/act", "x-moe/small/x-moe", "x-moe/small/tuned-smoe", "agreement/universal"),
    *("babi/universal", "depth/tiny-passivization", "lm/transformer", "one-wide-ffn/multi30k/tiny"),
]
"""Pairs, halting, masked texts, labels, two continuations, facts, pairs as one sequence, texts, pieces of words."""


def scores(name: str, *overrides: str) -> dict[str, float]:
    found = tiny_scores(load_recipe(name, ["model.d_model=32", *overrides]))
    assert found is not None
    return found


def moved(old: dict[str, float], new: dict[str, float]) -> set[str]:
    return {name for name in old if name not in new or not is_near(old[name], new[name])}


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_every_kind_of_arm_do_not_depend_on_what_ran_before(name: str) -> None:
    torch.manual_seed(7)
    first = scores(name)
    torch.manual_seed(8)
    before = torch.get_rng_state()
    assert scores(name, "seed=3", "model.dropout=0.3") == first
    assert torch.equal(torch.get_rng_state(), before)
    assert {"training loss 1", "training loss 3", "loss", "token_accuracy"} <= first.keys()
    assert all(value == value for value in first.values())


@pytest.mark.slow
def test_every_part_of_the_way_from_texts_to_metrics_is_in_it() -> None:
    decoded = scores(PAIRS)
    assert {"exact_match", "exact_match of fixed outputs", "n_generated", "score of the outputs"} <= decoded.keys()
    assert decoded["exact_match of fixed outputs"] == 0.25
    assert decoded["token_accuracy_free of fixed outputs"] not in (0, 1)
    assert "halting.encoder.mean" in scores("relay/act")
    assert "ranking.accuracy" in scores("agreement/universal")
    assert any(name.startswith("routing.") for name in scores("x-moe/small/x-moe"))
    with_bleu = tiny_scores(load_recipe("one-wide-ffn/multi30k/tiny"), ["bleu"])
    assert with_bleu is not None
    assert 0 < with_bleu["bleu of fixed outputs"] < 100


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        (PAIRS, "decoding={strategy: beam, beam: 4}", "score of the outputs"),
        (PAIRS, "data.tokenizer.kind=characters", "loss"),
        (PAIRS, "model.encoder.n_steps=3", "training loss 1"),
        (PAIRS, "training.optimizer.lr=0.02", "loss"),
        ("x-moe/small/x-moe", "data.masking.rate=0.4", "loss"),
        ("lm/transformer", "data.block_length=16", "loss"),
        ("relay/act", "model.encoder.halting.epsilon=0.3", "halting.encoder.mean"),
    ],
)
def test_what_an_arm_reads_and_how_it_is_scored_shows(name: str, change: str, named: str) -> None:
    assert named in moved(scores(name), scores(name, change))


@pytest.mark.slow
def test_other_code_of_the_order_of_data_of_decoding_and_of_metrics_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    old = scores(PAIRS)
    with monkeypatch.context() as patch:
        start = TrainingBatches._start_epoch
        patch.setattr(TrainingBatches, "_start_epoch", lambda self, epoch: start(self, epoch + 1))
        assert "training loss 1" in moved(old, scores(PAIRS))
    with monkeypatch.context() as patch:
        counts = ExactMatch.counts
        patch.setattr(ExactMatch, "counts", lambda self, *texts: [1, counts(self, *texts)[1]])
        assert moved(old, scores(PAIRS)) == {"exact_match", "exact_match of fixed outputs"}
    with monkeypatch.context() as patch:
        shorter = {"max_length": 3, "min_length": 0}
        patch.setattr(
            "ostinato.evaluation.passes.search",
            lambda model, batch, config, **rest: search(model, batch, config.model_copy(update=shorter), **rest),
        )
        assert moved(old, scores(PAIRS)) >= {"n_generated", "score of the outputs"}


def test_word_labels_and_spans_have_none() -> None:
    found = {name: load_recipe(name).model.reads for name in shipped_files("recipes") if name.startswith("tagging/")}
    assert set(found.values()) == {"tagging"}
    assert tiny_scores(load_recipe(next(iter(found)))) is None
