"""What an evaluation says about halting, against a plain loop over single sentences, and thresholds after training."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq

from ostinato.budget import MacCounter, count_macs
from ostinato.cli.results import print_splits
from ostinato.config.decoding import DecodingConfig
from ostinato.config.halting import ActConfig, StickBreakingConfig
from ostinato.data.collate import collate
from ostinato.data.example import Example
from ostinato.data.rows import encode_examples
from ostinato.errors import ConfigError
from ostinato.evaluation import evaluate
from ostinato.experiments.results import table
from ostinato.models import Seq2Seq
from running import run_as

GREEDY = DecodingConfig(max_length=8)
N_ROUNDS = 4


@pytest.fixture
def model() -> Seq2Seq:
    config = tiny_seq2seq(letter_tokenizers().target.vocab_size, n_steps=N_ROUNDS).config
    rules = {"encoder": ActConfig(initial_bias=-0.5), "decoder": StickBreakingConfig(threshold=0.8, initial_bias=0.0)}
    stacks = {name: getattr(config, name).model_copy(update={"halting": rule}) for name, rule in rules.items()}
    torch.manual_seed(1)
    model = Seq2Seq(config.model_copy(update=stacks)).eval()
    with torch.no_grad():
        for parameter in model.banks.halting.parameters():
            parameter.normal_(std=0.3)
        model.banks.halting["decoder"].bias.fill_(-1.0)
    return model


def numbers(model: Seq2Seq, n: int, size: int, n_steps: int | None = None) -> dict[str, Any]:
    data = DATA.model_copy(update={"eval_tokens_per_batch": size})
    tokenizers, by = letter_tokenizers(), ["length", "even"]
    examples = letter_examples(n)
    return evaluate(model, examples, tokenizers, data=data, decoding=GREEDY, metrics=[], by=by, n_steps=n_steps)


Sentences = list[tuple[Example, dict[str, list[tuple[int, float]]]]]


@torch.no_grad()
def sentences(model: Seq2Seq, n: int) -> Sentences:
    """Return for every example by itself, without padding, the executed rounds and expected depth of every token."""
    found: Sentences = []
    examples = letter_examples(n)
    rows = encode_examples(examples, letter_tokenizers(), DATA, training=False, name="dev")
    for example, row in zip(examples, rows, strict=True):
        depths: dict[str, list[tuple[int, float]]] = {}
        for name, stack in model(collate([row])).stacks.items():
            assert stack.halting is not None
            pairs = zip(stack.halting.executed_BTR[0].tolist(), stack.halting.weights_BTR[0].tolist(), strict=True)
            depths[name] = [(sum(e), sum(r * w for r, w in enumerate(weights, 1))) for e, weights in pairs]
        found.append((example, depths))
    return found


def by_hand(every: Sentences, wanted: Callable[[Example], bool]) -> dict[str, Any]:
    """Return the numbers of the tokens of the wanted examples."""
    tokens = {name: [t for example, depths in every for t in depths[name] if wanted(example)] for name in every[0][1]}
    rounds = {name: [executed for executed, _ in found] for name, found in tokens.items()}
    expected = {name: [depth for _, depth in found] for name, found in tokens.items()}
    return {
        name: {
            "mean": pytest.approx(sum(found) / len(found)),
            "expected": pytest.approx(sum(expected[name]) / len(found), rel=1e-5),
            "percentiles": {
                str(p): min(r for r in range(1, N_ROUNDS + 1) if 100 * sum(f <= r for f in found) >= p * len(found))
                for p in (50, 90, 99)
            },
            "histogram": [found.count(r) for r in range(1, N_ROUNDS + 1)],
        }
        for name, found in rounds.items()
    }


@pytest.mark.parametrize("size", [1, 37, 10_000])
def test_realised_depth_equals_a_loop_over_tokens_also_by_column_for_every_batch_size(
    model: Seq2Seq, size: int
) -> None:
    found = numbers(model, 12, size)
    loop = sentences(model, 12)
    every = by_hand(loop, lambda example: True)
    assert found["halting"] == every
    assert found["depth"] == {name: stack["mean"] for name, stack in every.items()}
    assert found["halting_threshold"] == {"encoder": 0.99, "decoder": 0.8}
    # The tokens do not all go equally deep, or this would show nothing.
    assert all(sum(count > 0 for count in stack["histogram"]) > 1 for stack in found["halting"].values())
    for column, values in found["by"].items():
        for value, scores in values.items():
            assert scores["halting"] == by_hand(
                loop,
                lambda example, c=column, v=value: str(example.columns[c]) == v,  # type: ignore[misc]
            )


def macs_by_hand(model: Seq2Seq, every: Sentences, wanted: Callable[[Example], bool]) -> dict[str, Any]:
    """Return the means over the wanted examples, each counted by itself from its tokens' executed rounds."""
    counter, found = MacCounter(model.config), []
    for example, depths in every:
        if wanted(example):
            rounds = {name: [executed for executed, _ in tokens] for name, tokens in depths.items()}
            found.append(counter.count({n: [r.count(i) for i in range(1, N_ROUNDS + 1)] for n, r in rounds.items()}))
            lengths = len(rounds["encoder"]), len(rounds["decoder"])
            assert found[-1].full == count_macs(model.config, *lengths).total
    full, realised = (sum(counts) / len(found) for counts in zip(*found, strict=True))
    assert realised < full
    return {"full": pytest.approx(full), "realised": pytest.approx(realised)}


def test_realised_macs_are_means_over_single_sentences_also_by_column_for_every_batch_size(model: Seq2Seq) -> None:
    loop = sentences(model, 12)
    found = [numbers(model, 12, size) for size in (1, 37, 10_000)]
    assert found[0]["macs"] == macs_by_hand(model, loop, lambda example: True)
    assert found[0]["macs"] == found[1]["macs"] == found[2]["macs"]
    for value, scores in found[1]["by"]["length"].items():
        by_hand_ = macs_by_hand(model, loop, lambda example, v=value: str(example.columns["length"]) == v)  # type: ignore[misc]
        assert scores["macs"] == by_hand_
        assert scores["macs"] == found[2]["by"]["length"][value]["macs"]


def test_where_nothing_halts_realised_macs_are_the_full_ones(model: Seq2Seq) -> None:
    run_as(model, halting=False)
    found = numbers(model, 5, 64, n_steps=3)["macs"]
    lengths = [2 * (len(example.source.split()) + 1,) for example in letter_examples(5)]
    expected = sum(count_macs(model.config, *two, n_steps=3).total for two in lengths) / 5
    assert found["full"] == pytest.approx(expected)
    # The gates are counted with the plan; that they are not asked without halting is a setting of this one model.
    assert found["realised"] == found["full"]


def test_depths_cover_the_rounds_that_were_asked_for(model: Seq2Seq) -> None:
    found = numbers(model, 5, 64, n_steps=6)["halting"]
    assert all(len(stack["histogram"]) == 6 for stack in found.values())


def test_a_lower_threshold_halts_tokens_earlier_and_0_after_one_round(model: Seq2Seq) -> None:
    depths = []
    for threshold in (1.0, 0.9, 0.7, 0.0):
        run_as(model, halting_threshold=threshold)
        found = numbers(model, 8, 64)
        assert found["halting_threshold"] == {"encoder": threshold, "decoder": threshold}
        depths.append([found["depth"]["encoder"], found["depth"]["decoder"]])
    for shallower, deeper in pairwise(reversed(depths)):
        assert shallower[0] < deeper[0]
        assert shallower[1] < deeper[1]
    assert depths[-1] == [1.0, 1.0]


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_a_threshold_outside_0_to_1_is_refused(model: Seq2Seq, value: float) -> None:
    with pytest.raises(ConfigError, match=r"halting_threshold.*must lie in \[0, 1\]"):
        run_as(model, halting_threshold=value)


def test_a_model_whose_tokens_do_not_halt_has_no_threshold_and_no_halting(capsys: pytest.CaptureFixture[str]) -> None:
    plain = tiny_seq2seq(letter_tokenizers().target.vocab_size)
    with pytest.raises(ConfigError, match=r"halting_threshold.*model\.encoder\.halting\.kind is none"):
        run_as(plain, halting_threshold=0.5)
    found = numbers(plain, 3, 64)
    assert "halting" not in found
    assert "halting_threshold" not in found
    assert all("halting" not in scores for values in found["by"].values() for scores in values.values())
    print_splits({"dev": found})
    assert "encoder depth" not in capsys.readouterr().out


def test_tables_by_column_have_the_forced_scores_that_the_task_is_reported_by(
    model: Seq2Seq, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"dev": numbers(model, 3, 64)}
    print_splits(found)
    assert "sequence_accuracy_forced" not in capsys.readouterr().out.split("dev by length")[1].splitlines()[0]
    print_splits(found, ["token_accuracy", "sequence_accuracy_forced", "ranking"])
    (names, *_) = capsys.readouterr().out.split("dev by length")[1].splitlines()
    assert names.split()[:4] == ["n", "loss", "token_accuracy", "sequence_accuracy_forced"]
    assert "ranking" not in names


def test_without_halting_every_token_runs_every_round_and_the_rule_comes_back(model: Seq2Seq) -> None:
    before = numbers(model, 5, 64)
    run_as(model, halting=False)
    found = numbers(model, 5, 64)
    assert found["depth"] == {"encoder": N_ROUNDS, "decoder": N_ROUNDS}
    assert "halting" not in found
    assert found["loss"] != before["loss"]
    run_as(model, halting=True)
    assert numbers(model, 5, 64)["loss"] == before["loss"]


def test_results_with_halting_are_shown_and_tabled_beside_old_ones(
    model: Seq2Seq, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads(json.dumps(numbers(model, 12, 64)))
    old = {key: value for key, value in result.items() if not key.startswith(("halting", "macs"))}
    old["by"] = {
        column: {
            value: {k: v for k, v in scores.items() if k not in ("halting", "macs")} for value, scores in values.items()
        }
        for column, values in result["by"].items()
    }
    print_splits({"old": old, "new": result})
    scores, new = capsys.readouterr().out.split("new: stack")
    assert "histogram" not in scores
    assert "encoder depth" not in scores
    [line, *_] = [line for line in new.splitlines() if line.strip().startswith("encoder")]
    found = result["halting"]["encoder"]
    shown = ["encoder", "4", "0.99", f"{found['mean']:.4g}", f"{found['expected']:.4g}"]
    assert line.split() == [*shown, *map(str, found["percentiles"].values())]
    by_even = new.split("new by even")[1]
    assert "encoder depth" in by_even
    [line] = [line for line in by_even.splitlines() if line.strip().startswith("True")]
    depths = [result["by"]["even"]["True"]["halting"][stack]["mean"] for stack in ("encoder", "decoder")]
    macs = result["by"]["even"]["True"]["macs"]["realised"] / 1e6
    assert line.split()[-3:] == [f"{number:.4g}" for number in (*depths, macs)]
    assert "M MACs" in by_even
    row = {"name": "x", "seed": 1, "parameters": 1, "macs": {"total": 1}, "seconds": 1.0}
    columns, lines = table([row | {"splits": {"old": old, "new": result}}])
    assert not any("halting" in column for column in columns)
    assert lines[0][6:] == lines[1][6:]
