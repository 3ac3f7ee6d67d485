from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ostinato.cli import main
from ostinato.config.load import check_recipe
from ostinato.config.loops import SegmentConfig
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.experiments.compare.matched_runs import (
    Curve,
    match_loss,
    match_perplexity,
    reached,
    read_curve,
    score_pairs,
)
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train


def test_a_loss_is_reached_between_two_evaluations_of_the_running_minimum() -> None:
    points = [(10, 4.0), (20, 3.0), (30, 3.5), (40, 2.0)]
    assert reached(points, 4.5) == 10.0
    assert reached(points, 3.5) == 15.0
    assert reached(points, 3.0) == 20.0
    # Above 3.0 at update 30 does not undo what was reached: from (30, 3.0) to (40, 2.0).
    assert reached(points, 2.5) == 35.0
    assert reached(points, 1.0) is None


def test_deeper_runs_are_matched_to_the_end_of_shallower_ones() -> None:
    shallow = Curve("one", 1, [(10, 4.0), (20, 3.0)], [20])
    deep = Curve("four", 4, [(10, 3.5), (20, 2.5), (30, 2.0)], [10, 20, 30])
    deepest = Curve("six", 6, [(10, 5.0), (20, 4.0)], [20])
    rows = match_perplexity([deep, deepest, shallow])
    found = {(row["reference"], row["run"]): row for row in rows}
    assert list(found) == [
        ("one", "one"),
        ("one", "four"),
        ("one", "six"),
        ("four", "four"),
        ("four", "six"),
        ("six", "six"),
    ]
    own = found["one", "one"]
    assert (own["reached"], own["checkpoint"], own["mismatch"]) == (20.0, "update-000020", 0.0)
    four = found["one", "four"]
    # Half way between 3.5 and 2.5; both checkpoints are 0.5 off, and the earlier one is taken.
    assert four["reached"] == 15.0
    assert (four["checkpoint"], four["mismatch"]) == ("update-000010", 0.5)
    assert four["own"] == pytest.approx(math.exp(3.5))
    assert four["perplexity"] == pytest.approx(math.exp(3.0))
    six = found["one", "six"]
    assert (six["reached"], six["checkpoint"], six["own"], six["mismatch"]) == (None, None, None, None)


def test_runs_of_equal_depth_are_matched_to_each_other_whatever_their_order() -> None:
    one = Curve("one", 2, [(10, 4.0), (20, 3.0)], [20])
    other = Curve("other", 2, [(10, 3.5), (20, 2.5)], [20])
    shallow = Curve("shallow", 1, [(10, 4.0)], [10])
    for given in ([one, other, shallow], [other, shallow, one]):
        rows = match_perplexity(given)
        pairs = [(row["reference"], row["run"]) for row in rows]
        assert len(pairs) == len(set(pairs)) == 7
        assert {("one", "other"), ("other", "one"), ("one", "one"), ("other", "other")} < set(pairs)
        assert ("one", "shallow") not in pairs
        own = next(row for row in rows if (row["reference"], row["run"]) == ("other", "other"))
        assert (own["reached"], own["mismatch"]) == (20.0, 0.0)


def test_the_checkpoint_is_one_beside_the_first_crossing_not_one_of_overfitting() -> None:
    shallow = Curve("shallow", 1, [(10, 3.0), (50, 2.5)], [50])
    losses = [(10, 3.5), (20, 2.7), (30, 2.2), (40, 2.0), (50, 2.49)]
    row = match_perplexity([shallow, Curve("deep", 2, losses, [at for at, _ in losses])])[1]
    assert row["reached"] == pytest.approx(24)
    assert row["checkpoint"] == "update-000020"
    late = match_perplexity([shallow, Curve("deep", 2, losses, [10, 40, 50])])[1]
    assert late["checkpoint"] == "update-000040"


def test_scores_are_compared_at_losses_that_all_runs_reached() -> None:
    pairs = {
        "a": [(math.exp(2), 0.0), (math.exp(0), 0.5), (math.exp(1), 0.9), (math.exp(-2), 1.0)],
        "b": [(math.exp(1), 0.2), (math.exp(-1), 0.4)],
    }
    first, middle, last = match_loss(pairs, 3)
    assert [math.log(row["loss"]) for row in (first, middle, last)] == pytest.approx([1.0, 0.0, -1.0])
    # a passes log loss 1 between 2 and 0; its rise to 1 again is left out.
    assert first["scores"] == pytest.approx({"a": 0.25, "b": 0.2})
    assert middle["scores"] == pytest.approx({"a": 0.5, "b": 0.3})
    assert last["scores"] == pytest.approx({"a": 0.75, "b": 0.4})
    with pytest.raises(DataError, match="no loss that all runs had"):
        match_loss({"a": [(2.0, 0.0)], "b": [(3.0, 0.0)]})


def test_a_loss_of_0_is_one_that_rounding_does_not_tell_from_it() -> None:
    first, last = match_loss({"a": [(1.0, 0.5), (0.0, 0.75), (-1e-9, 1.0)], "b": [(1.0, 0.25), (0.0, 0.5)]}, 2)
    assert (first["loss"], first["scores"]) == (1.0, {"a": 0.5, "b": 0.25})
    assert 0 < last["loss"] < 1e-6
    assert last["scores"] == {"a": 0.75, "b": 0.5}


def test_losses_over_other_labels_are_not_matched() -> None:
    shared = {"tokens to predict": ["a", "b"], "held-out examples": "0f", "training.selection.max_examples": None}
    one = Curve("one", 1, [(10, 4.0)], [10], shared)
    match_perplexity([one, Curve("same", 2, [(10, 4.0)], [10], dict(shared))])
    for changed, named in (
        ({"tokens to predict": ["a"]}, "other tokens to predict than one"),
        ({"held-out examples": "1f", "training.selection.max_examples": 9}, "examples and training.selection.max_ex"),
    ):
        with pytest.raises(DataError, match=f"^other has other .*{named[-20:]}.*, so that their held-out losses"):
            match_perplexity([one, Curve("other", 2, [(10, 4.0)], [10], shared | changed)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matched")
    model = {"kind": "language_model", "d_model": 8, "dropout": 0.0}
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    training = {"n_updates": 6, "evaluate_every": 2, "save_every": 2, "keep_last": 9, "device": "cpu"}
    data = {"train": str(folder / "a.jsonl"), "dev": str(folder / "a.jsonl"), "test": str(folder / "a.jsonl")}
    (folder / "a.jsonl").write_text('{"source": "a b", "target": "b a"}\n{"source": "a", "target": "a"}\n' * 4)
    recipe = check_recipe({"data": data, "model": model | {"decoder": stack}, "training": training})
    train(recipe, folder / "run")
    return folder / "run"


def train_on_other(run: Path, folder: Path, *settings: str) -> Curve:
    recipe = load_recipe(run, ["model.vocab_size=null", *settings])
    train(recipe, folder / "other")
    return read_curve(folder / "other")


def test_the_depth_of_a_loop_is_that_of_its_rounds(run: Path, tmp_path: Path) -> None:
    recipe = load_recipe(run)
    looped = recipe.model.decoder.model_copy(update={"segments": [SegmentConfig(repeats=4)]})
    model = recipe.model.model_copy(update={"decoder": looped, "vocab_size": None})
    train(recipe.model_copy(update={"model": model}), tmp_path / "looped")
    assert read_curve(tmp_path / "looped").depth == 4


def test_a_run_can_be_read_matched_and_started_from_its_checkpoint(run: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    curve = read_curve(run)
    assert curve.checkpoints == [2, 4, 6]
    assert [update for update, _ in curve.points] == [2, 4, 6]
    assert curve.depth == 1
    others = train_on_other(run, tmp_path, "data.tokenizer={kind: characters}", "training.selection.max_examples=3")
    with pytest.raises(DataError, match=r"other tokens to predict and training\.selection\.max_examples than"):
        match_perplexity([curve, others])
    with pytest.raises(SystemExit) as end:
        main(["compare", str(run), others.name, "--match", "loss"])
    assert end.value.code
    assert "so that their held-out losses cannot be matched" in capsys.readouterr().err
    pairs = score_pairs(run, curve, "test", "exact_match")
    assert [loss for loss, _ in pairs] == [loss for _, loss in curve.points]
    for arguments in (["perplexity", str(run)], ["loss", "--points", "2"]):
        with pytest.raises(SystemExit) as end:
            main(["compare", str(run), "--match", *arguments, "--json"])
        assert end.value.code == 0
        assert json.loads(capsys.readouterr().out)
    content = json.loads((run.parent / "a.jsonl").read_text().splitlines()[0])
    assert content["target"] == "b a"
    with pytest.raises(CheckpointError, match=r"there is no such directory"):
        read_curve(tmp_path / "none")


def test_a_checkpoint_to_start_from_is_named(run: Path, tmp_path: Path) -> None:
    recipe = json.loads(json.dumps(check_recipe({}).model_dump(mode="json")))
    recipe |= {"data": {name: str(run.parent / "a.jsonl") for name in ("train", "dev", "test")}}
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    recipe["model"] = {"kind": "language_model", "d_model": 8, "decoder": stack}
    start = {"init_from": str(run), "init_checkpoint": "update-000002"}
    recipe["training"] = {"n_updates": 2, "evaluate_every": 2, "save_every": 2, "device": "cpu"} | start
    train(check_recipe(recipe), tmp_path / "run")
    report = json.loads((tmp_path / "run" / "initial.json").read_text())
    assert report["checkpoint"].endswith("update-000002")
    with pytest.raises(CheckpointError, match="update-000009 is no checkpoint"):
        train(
            check_recipe(recipe | {"training": recipe["training"] | {"init_checkpoint": "update-000009"}}),
            tmp_path / "x",
        )
    with pytest.raises(ConfigError, match=r"init_checkpoint is 'last': needs training\.init_from"):
        check_recipe({"training": {"init_checkpoint": "last"}})
