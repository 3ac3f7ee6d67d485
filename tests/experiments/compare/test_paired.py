from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from halting_runs import halting_run
from ostinato.budget import count_macs, count_parameters
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation.stored import Outputs
from ostinato.experiments.compare import systems
from ostinato.experiments.compare.paired import _HALTING, _origin, compare
from ostinato.experiments.compare.paired_tables import score_table
from ostinato.experiments.compare.systems import Choices, System
from ostinato.experiments.results import read_rows, write_rows
from ostinato.metrics.matching import ExactMatch
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

TINY = ["task.n_train=40", "training.n_updates=2", "training.n_threads=1", "training.device=cpu"]
SHORT = [*TINY, "task.n_eval=8", "decoding.max_length=6"]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs on the same test sentences, the last of them on fewer."""
    folder = tmp_path_factory.mktemp("runs")
    train(load_recipe("digits/transformer", SHORT), folder / "base")
    train(load_recipe("digits/universal", [*SHORT, "seed=2", "training.n_threads=2"]), folder / "other")
    train(load_recipe("digits/transformer", [*SHORT, "task.n_eval=7"]), folder / "fewer")
    return [folder / name for name in ("base", "other", "fewer")]


def predictions(path: Path, share_right: float, n: int = 60, seed: int = 0, references: str = "") -> Path:
    """Write a file of predictions of which about that share is right."""
    words, luck = random.Random(1), random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for index in range(n):
            reference = " ".join(words.choices(WORDS, k=8)) + references
            prediction = reference if luck.random() < share_right else " ".join(luck.choices(WORDS, k=8))
            file.write(json.dumps({"index": index, "prediction": prediction, "reference": reference}) + "\n")
    return path


@pytest.mark.slow
def test_a_decoder_only_model_costs_a_pass_over_source_and_target(tmp_path: Path) -> None:
    sizes = ["model.d_model=16", "model.decoder.self_attention.n_heads=2"]
    train(load_recipe("digits/transformer", [*SHORT, "model.kind=language_model", *sizes]), tmp_path / "lm")
    (row,) = compare([tmp_path / "lm"], Choices(splits=["test"], lengths=(7, 9), device="cpu"))
    macs = count_macs(load_recipe(tmp_path / "lm").model, 7, 16)
    assert row["macs"] == {
        "source_length": 7,
        "target_length": 9,
        "total": macs.total,
        "per_generated_token": macs.per_generated_token,
        "full_depth": macs.total,
        "depth": {},
    }


@pytest.mark.slow
def test_a_run_whose_tokens_halt_costs_what_its_tokens_ran_on_each_split(tmp_path: Path) -> None:
    run = halting_run(tmp_path / "run")
    rows = compare([run], Choices(splits=["test", "long"], lengths=(7, 9), device="cpu"))
    model = load_recipe(run).model
    for row in rows:
        measured = systems.load(run, device="cpu").evaluate(row["split"], metrics=[])["halting"]
        depth = {stack: found["mean"] for stack, found in measured.items()}
        realised = count_macs(model, 7, 9, expected_depth=depth)
        macs = row["macs"]
        assert (macs["total"], macs["per_generated_token"]) == (realised.total, realised.per_generated_token)
        assert macs["depth"] == depth
        assert macs["total"] < macs["full_depth"] == count_macs(model, 7, 9).total
    assert rows[0]["macs"]["depth"] != rows[1]["macs"]["depth"]


@pytest.mark.slow
def test_a_run_whose_routers_give_tokens_their_rounds_costs_those(tmp_path: Path) -> None:
    chosen = ["model.encoder.n_steps=4", "model.encoder.halting={kind: token_choice}"]
    train(load_recipe("digits/universal", [*SHORT, *chosen]), tmp_path / "run")
    (row,) = compare([tmp_path / "run"], Choices(splits=["test"], lengths=(7, 9), device="cpu"))
    measured = systems.load(tmp_path / "run", device="cpu").evaluate("test", metrics=[])["depth"]["encoder"]
    assert row["macs"]["depth"] == {"encoder": measured}
    assert 1 < measured < 4
    assert row["macs"]["total"] < row["macs"]["full_depth"]


@pytest.mark.slow
def test_a_run_whose_rounds_follow_from_the_length_costs_those_of_the_counted_length(tmp_path: Path) -> None:
    rounds = [
        f"model.{stack}.{key}" for stack in ("encoder", "decoder") for key in ("n_steps=5", "halting={kind: length}")
    ]
    train(load_recipe("digits/universal", [*SHORT, *rounds]), tmp_path / "run")
    (row,) = compare([tmp_path / "run"], Choices(splits=["test"], lengths=(3, 9), device="cpu"))
    assert row["macs"]["total"] == count_macs(load_recipe(tmp_path / "run").model, 3, 9).total
    assert row["macs"]["depth"] == {}


def test_a_split_that_is_named_twice_is_compared_once(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", SHORT), tmp_path / "run")
    (row,) = compare([tmp_path / "run"], Choices(splits=["test", "test"], device="cpu"))
    assert row["split"] == "test"


def test_a_path_that_is_not_there_is_named_before_anything_else(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"typo: no such file or run directory"):
        compare([runs[0], tmp_path / "typo"], Choices(device="cpu"))


@pytest.mark.slow
def test_a_row_holds_scores_intervals_differences_and_costs(runs: list[Path]) -> None:
    lines: list[str] = []
    n_threads = torch.get_num_threads()
    rows = compare(runs[:2], Choices(lengths=(7, 9), device="cpu"), lines.append)
    assert [(row["split"], row["system"]) for row in rows] == [
        *(("test", "base"), ("test", "other"), ("long", "base"), ("long", "other"))
    ]
    assert [line.rpartition(" in ")[0] for line in lines][:2] == [
        "base, test: 8 outputs decoded",
        "base, long: 8 outputs decoded",
    ]
    for run, row in zip(runs[:2] * 2, rows, strict=True):
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        recipe = load_recipe(run)
        assert row["n"] == 8
        assert set(row["metrics"]) == {"exact_match", "token_accuracy_free"}
        for name, score in row["metrics"].items():
            assert score["value"] == results["splits"][row["split"]][name]
            assert score["low"] <= score["value"] <= score["high"]
        assert row["parameters"] == count_parameters(recipe.model).stored == results["parameters"]
        macs = count_macs(recipe.model, 7, 9)
        assert row["macs"] == {
            "source_length": 7,
            "target_length": 9,
            "total": macs.total,
            "per_generated_token": macs.per_generated_token,
            "full_depth": macs.total,
            "depth": {},
        }
        assert (row["recipe"], row["seed"], row["n_updates"]) == (recipe.name, recipe.seed, 2)
        speeds = [t["labels_per_second"] for t in read_rows(run / "timings.jsonl") if t["kind"] == "training"]
        assert row["training_tokens_per_second"] == median(speeds)
        assert row["training_seconds"] == results["training_seconds"]
        assert row["decoding"]["n_generated"] == results["splits"][row["split"]]["n_generated"]
        assert row["decoding"]["tokens_per_second"] * row["decoding"]["seconds"] == pytest.approx(
            row["decoding"]["n_generated"]
        )
        assert row["bootstrap"] == {"n_samples": 1000, "seed": 12345, "level": 0.95}
    assert [row["decoding"]["n_threads"] for row in rows] == [1, 2, 1, 2]
    assert torch.get_num_threads() == n_threads
    for reference, other in (rows[:2], rows[2:]):
        for name, score in other["metrics"].items():
            first = reference["metrics"][name]
            assert (first["difference"], first["verdict"]) == (None, None)
            assert score["difference"]["value"] == score["value"] - first["value"]
    assert json.loads(json.dumps(rows)) == rows


def test_a_run_does_not_differ_from_itself_and_is_decoded_once(runs: list[Path]) -> None:
    choices = Choices(splits=["test"], metrics=["bleu", "chrf"], device="cpu", decoding={"beam": 2})
    first, same = compare([runs[0], runs[0]], choices)
    assert (first["decoding"]["is_new"], same["decoding"]["is_new"]) == (True, False)
    assert first["decoding"]["settings"]["beam"] == 2
    assert first["decoding"] | {"is_new": False} == same["decoding"]
    for name in ("bleu", "chrf"):
        assert same["metrics"][name]["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
        assert same["metrics"][name]["verdict"] == "no difference shown"
        assert "version:" in same["metrics"][name]["signature"]
    assert [row["system"] for row in (first, same)] == [str(runs[0])] * 2


def test_a_clearly_better_file_is_higher_and_a_chance_difference_is_not_claimed(tmp_path: Path) -> None:
    base = predictions(tmp_path / "base.jsonl", 0.5)
    luck = predictions(tmp_path / "luck.jsonl", 0.5, seed=1)
    best = predictions(tmp_path / "best.jsonl", 0.95, seed=2)
    worst = predictions(tmp_path / "worst.jsonl", 0.1, seed=3)
    choices = Choices(metrics=["exact_match", "bleu", "chrf"])
    rows = compare([base, luck, best, worst], choices)
    for name in ("exact_match", "bleu", "chrf"):
        verdicts = [row["metrics"][name]["verdict"] for row in rows]
        assert verdicts == [None, "no difference shown", "higher", "lower"]
    assert rows[1]["metrics"]["exact_match"]["difference"]["value"] != 0
    assert [row["system"] for row in rows] == ["base", "luck", "best", "worst"]
    unknown = ("split", "recipe", "parameters", "macs", "n_updates", "training_tokens_per_second", "decoding")
    assert {key: rows[0][key] for key in unknown} == dict.fromkeys(unknown)
    assert compare([base, luck, best, worst], choices) == rows
    other = compare([base, best], Choices(metrics=["bleu"], seed=1))[1]["metrics"]["bleu"]
    assert other["value"] == rows[2]["metrics"]["bleu"]["value"]
    assert other["difference"]["low"] != rows[2]["metrics"]["bleu"]["difference"]["low"]


def test_a_run_is_compared_with_a_file_of_its_own_predictions(runs: list[Path], tmp_path: Path) -> None:
    systems.load(runs[0], device="cpu").evaluate("test", predictions=tmp_path / "p.jsonl")
    rows = compare([runs[0], tmp_path / "p.jsonl"], Choices(splits=["test"], max_examples=7, device="cpu"))
    assert [(row["system"], row["n"], row["split"]) for row in rows] == [("base", 7, "test"), ("p", 7, "test")]
    assert rows[1]["metrics"]["token_accuracy_free"]["difference"]["value"] == 0
    assert rows[1]["macs"] is None
    assert rows[0]["macs"]["total"] > 0


def test_rows_that_were_written_are_read(runs: list[Path], tmp_path: Path) -> None:
    rows = compare(runs[:2], Choices(device="cpu"))
    write_rows(rows, tmp_path / "rows.jsonl")
    assert compare([tmp_path / "rows.jsonl"]) == rows


def test_rows_of_several_comparisons_stand_in_one_table_only_where_they_were_made_alike(tmp_path: Path) -> None:
    base, one, two = (predictions(tmp_path / f"{name}.jsonl", 0.5, seed=i) for i, name in enumerate(("b", "x", "y")))
    metrics = ["exact_match"]

    def written(name: str, *paths: Path, **choices: Any) -> Path:
        write_rows(compare(paths, Choices(metrics=metrics, **choices)), tmp_path / name)
        return tmp_path / name

    first, second = written("1.jsonl", base, one), written("2.jsonl", base, two)
    more = tmp_path / "more.jsonl"
    write_rows(compare([base, one], Choices(metrics=["exact_match", "bleu"])), more)
    found = compare([first, second, more])
    assert [(row["system"], len(row["metrics"])) for row in found] == [("b", 2), ("x", 2), ("y", 1)]
    with pytest.raises(DataError, match=r"1\.jsonl and .*3\.jsonl have other references, samples or counted lengths"):
        compare([first, written("3.jsonl", base, two, seed=9)])
    with pytest.raises(DataError, match="other references"):
        compare([first, written("4.jsonl", two, base)])
    (tmp_path / "other").mkdir()
    other = predictions(tmp_path / "other" / "x.jsonl", 0.9, seed=7)
    with pytest.raises(DataError, match=r"5\.jsonl: x has other scores in another file"):
        compare([first, written("5.jsonl", base, other)])


def row_of(metric: str, **changes: Any) -> dict[str, Any]:
    """A row of a comparison, with one metric."""
    score = {"value": 0.5, "low": 0.4, "high": 0.6, "signature": None, "difference": None, "verdict": None}
    return {
        "split": "test",
        "system": "base",
        "reference": "base",
        "n": 60,
        "metrics": {metric: score},
        "bootstrap": {"n_samples": 1000, "seed": 12345, "level": 0.95},
        "seed": 1,
        "parameters": 1000,
        "macs": None,
        "checkpoint": "update-000002",
        "halting_threshold": None,
        "halting_threshold_from": None,
        "exit": None,
        "decoding": {"seconds": 1.0, "settings": {"beam": 1}},
    } | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n": 50}, "n: 50 and 60"),
        ({"checkpoint": "update-000004"}, "checkpoint: 'update-000004' and 'update-000002'"),
        ({"seed": 2}, "seed: 2 and 1"),
        ({"parameters": 2000, "seed": 2}, "seed: 2 and 1, parameters: 2000 and 1000"),
        ({"decoding": {"seconds": 1.0, "settings": {"beam": 5}}}, "decoding.beam: 5 and 1"),
        ({"halting_threshold": {"decoder": 0.2}}, "halting_threshold: {'decoder': 0.2} and None"),
        ({"exit": {"criterion": "change"}}, "exit: {'criterion': 'change'} and None"),
    ],
)
def test_rows_of_one_name_that_are_of_something_else_are_not_one_system(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    write_rows([row_of("bleu")], tmp_path / "1.jsonl")
    write_rows([row_of("loss", decoding=None)], tmp_path / "2.jsonl")
    write_rows([row_of("chrf", **changes)], tmp_path / "3.jsonl")
    for order in ("123", "213"):
        with pytest.raises(DataError) as caught:
            compare([tmp_path / f"{name}.jsonl" for name in order])
        expected = f"3.jsonl: base on test is another system in another file ({said}): show them one by one"
        assert str(caught.value).endswith(expected)


def test_rows_of_scores_for_which_nothing_is_decoded_join_those_of_outputs(tmp_path: Path) -> None:
    write_rows([row_of("loss", decoding=None)], tmp_path / "1.jsonl")
    write_rows([row_of("bleu")], tmp_path / "2.jsonl")
    (row,) = compare([tmp_path / "1.jsonl", tmp_path / "2.jsonl"])
    assert set(row["metrics"]) == {"loss", "bleu"}
    assert row["decoding"]["settings"] == {"beam": 1}


def test_rows_of_earlier_versions_say_nothing_of_how_tokens_halted_and_are_joined(tmp_path: Path) -> None:
    earlier = {key: value for key, value in row_of("loss").items() if key not in _HALTING}
    write_rows([earlier], tmp_path / "1.jsonl")
    write_rows([row_of("bleu", halting_threshold={"decoder": 0.2})], tmp_path / "2.jsonl")
    (row,) = compare([tmp_path / "1.jsonl", tmp_path / "2.jsonl"])
    assert set(row["metrics"]) == {"loss", "bleu"}
    assert row["halting_threshold"] == {"decoder": 0.2}
    write_rows([row_of("chrf", halting_threshold={"decoder": 0.5})], tmp_path / "3.jsonl")
    with pytest.raises(DataError, match="halting_threshold"):
        compare([tmp_path / f"{number}.jsonl" for number in (1, 2, 3)])


def test_rows_of_a_split_with_another_number_of_examples_are_refused(tmp_path: Path) -> None:
    write_rows([row_of("bleu"), row_of("bleu", split="long", n=9)], tmp_path / "1.jsonl")
    write_rows([row_of("bleu", system="other", n=50)], tmp_path / "2.jsonl")
    with pytest.raises(DataError, match=r"2\.jsonl: other has 50 examples of test, and base 60: show them one by one"):
        compare([tmp_path / "1.jsonl", tmp_path / "2.jsonl"])


def test_a_score_that_is_not_finite_is_written_and_shown_again(tmp_path: Path) -> None:
    score = row_of("perplexity")["metrics"]["perplexity"]
    metrics = {"perplexity": score | {"value": math.inf, "high": math.inf}, "bleu": score}
    write_rows([row_of("bleu", metrics=metrics)], tmp_path / "1.jsonl")
    (row,) = compare([tmp_path / "1.jsonl"])
    assert score_table([row])[1][0][3:] == ["not finite [0.4000, not finite]", "0.5000 [0.4000, 0.6000]"]
    assert score_table([row | {"metrics": metrics}]) == score_table([row])


@pytest.mark.parametrize("is_forced", [True, False])
def test_a_threshold_that_was_tuned_is_said_of_scores_and_of_outputs(is_forced: bool) -> None:
    evaluation = {"n": 60, "seconds": 2.0, "halting_threshold_from": "tuned"}
    texts = [] if is_forced else ["a"]
    found = Outputs(texts, texts, texts, Path("p.jsonl"), evaluation, is_new=True)
    said = "60 examples scored" if is_forced else "1 outputs decoded"
    assert _origin(found) == f"{said} in 2.0 s, at the halting threshold that was tuned for the run"


def test_systems_with_other_references_are_refused_before_anything_is_decoded(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(systems, "run_outputs")
    with pytest.raises(DataError, match=r"fewer cannot be compared with .*base on test: 7 references against 8"):
        compare([runs[0], runs[2]])
    one, two = predictions(tmp_path / "one.jsonl", 1), predictions(tmp_path / "two.jsonl", 1, references=" more")
    with pytest.raises(DataError, match=r"their references differ, first at index 0: '.* more' against '.*'"):
        compare([one, two], Choices(metrics=["bleu"]))


def test_what_cannot_be_compared_is_named(runs: list[Path], tmp_path: Path) -> None:
    file = predictions(tmp_path / "one.jsonl", 1)
    for paths, choices, expected in (
        ([file], Choices(), "name what to compare by"),
        ([file], Choices(metrics=["blue"]), "did you mean bleu"),
        ([runs[0], file], Choices(), "a file of predictions is of one split"),
        ([runs[0]], Choices(splits=["gen"]), "split is 'gen'"),
        ([tmp_path], Choices(), "holds no recipe.yaml, so it is not a run"),
        ([file], Choices(metrics=["bleu"], n_samples=9), "n_samples is 9: must be at least 100"),
    ):
        with pytest.raises(ConfigError, match=expected):
            compare(paths, choices)
    with pytest.raises(DataError, match="no such file"):
        compare([tmp_path / "gone.jsonl"], Choices(metrics=["bleu"]))
    with pytest.raises(DataError, match="5 sentences are too few"):
        compare([runs[0]], Choices(max_examples=5, device="cpu"))


class WithSource(ExactMatch):
    """A user's own metric, of what a system was given."""

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        return [int(source != ""), 1]


def test_a_metric_of_the_source_has_it_where_one_example_has_none(tmp_path: Path) -> None:
    lines = [{"index": i, "prediction": "a", "reference": "a", "source": "" if i == 3 else "four"} for i in range(8)]
    path = tmp_path / "outputs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    name = f"{__name__}:WithSource"
    chosen = Choices(metrics=[name], n_samples=100)
    (row,) = compare([path], chosen)
    assert row["metrics"][name]["value"] == 7 / 8
    fewer = tmp_path / "fewer.jsonl"
    del lines[4]["source"]
    fewer.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    rows = compare([fewer, path], chosen)
    assert [row["metrics"][name]["value"] for row in rows] == [7 / 8] * 2, "those of the file that has most"


def test_a_file_that_is_written_during_a_comparison_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(load_recipe("digits/transformer", SHORT), tmp_path / "run")
    read = System.references
    monkeypatch.setattr(System, "references", lambda *given: read(*given)[::-1])  # of what the file held before
    with pytest.raises(DataError, match="run: test: was changed while systems were compared"):
        compare([tmp_path / "run"], Choices(splits=["test"], metrics=["exact_match"], device="cpu"))


def test_the_checkpoint_of_a_row_is_the_one_that_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(load_recipe("digits/transformer", [*SHORT, "training.save_every=1"]), tmp_path / "run")
    load, last = systems.load, tmp_path / "run" / "checkpoints" / "last.json"

    def saved(*given: Any, **how: Any) -> Any:
        found = load(*given, **how)
        last.write_text('{"directory": "update-000001", "update": 1}', encoding="utf-8")
        return found

    monkeypatch.setattr(systems, "load", saved)
    (row,) = compare([tmp_path / "run"], Choices(splits=["test"], checkpoint="last", device="cpu"))
    assert row["checkpoint"] == "update-000002"
