from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import ostinato
from halting_runs import N_ROUNDS, draw_gates, halting_run, plain_run
from ostinato.config.load import check_recipe
from ostinato.errors import ConfigError
from ostinato.evaluation.threshold import Point, TunedThreshold, Tuning, choose, read_tuned
from ostinato.experiments.compare.thresholds import THRESHOLDS, tune_threshold
from ostinato.models.build import without_memory
from ostinato.models.checkpoint import weights_hash
from ostinato.nn.execution import CRITERIA_AT_TEST, Execution
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

TRAINED = {"encoder": 0.9, "decoder": 0.95}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halting_run(tmp_path_factory.mktemp("halting") / "run")


def point(threshold: float | None, score: float, macs: float) -> Point:
    return Point(threshold, {"decoder": threshold or 0.999}, score, {"decoder": 0.5}, {"realised": macs}, 1.0, None)


def test_the_choice_is_the_cheapest_threshold_that_loses_no_more_than_is_allowed() -> None:
    points = [point(None, 0.914, 100), point(0.9, 0.915, 90), point(0.8, 0.912, 70), point(0.5, 0.911, 40)]
    assert choose(points, 0.002).threshold == 0.8
    assert choose(points, 0.0).threshold == 0.9
    assert choose(points, 0.003).threshold == 0.5
    assert choose([replace(p, score=100 * p.score) for p in points], 0.002, perfect=100).threshold == 0.8
    for perfect in (0.0, -1.0):  # no score has a share of it
        assert choose([replace(p, score=p.score - 2.0) for p in points], 0.002, perfect).threshold == 0.8


def test_the_figure_has_room_for_equal_scores_whatever_a_perfect_one_is() -> None:
    pytest.importorskip("matplotlib")
    from ostinato.analysis.threshold_figure import figure_of

    points = tuple(
        replace(point(threshold, -0.5, 90), macs={"realised": 90.0, "full": 100.0}) for threshold in (None, 0.9)
    )
    spans = []
    for perfect in (1.0, 0.0, -1.0):
        tuning = Tuning("best", "dev", "mine:MinusDistance", perfect, 0.002, 10, points, points[1])
        low, high = figure_of(tuning).axes[0].get_ylim()
        spans.append(high - low)
    assert spans == [pytest.approx(0.1)] * 3


def test_the_trained_thresholds_are_kept_where_nothing_is_cheaper_and_good_enough() -> None:
    trained = point(None, 0.9, 80)
    assert choose([trained, point(0.99, 0.95, 90), point(0.5, 0.8, 40)], 0.002) is trained
    assert choose([trained, point(0.8, 0.95, 80)], 0.002) is trained
    # Of two that cost the same the better one.
    assert choose([trained, point(0.8, 0.9, 70), point(0.7, 0.91, 70)], 0.002).threshold == 0.7


@pytest.mark.slow
@pytest.mark.sampled
def test_a_sweep_measures_every_threshold_as_an_evaluation_at_it_does(run: Path) -> None:
    seen: list[Point] = []
    loaded = ostinato.load(run, device="cpu")
    wanted = {"metric": "token_accuracy", "max_drop": 1.0, "on_point": seen.append}
    found = tune_threshold(loaded, "dev", thresholds=[0.5, 0.0, 0.8, 0.5], **wanted)  # type: ignore[arg-type]
    assert [p.threshold for p in found.points] == [None, 0.8, 0.5, 0.0]
    assert seen == [*found.points, found.oracle]
    for measured in found.points:
        threshold = "trained" if measured.threshold is None else measured.threshold
        again = ostinato.load(run, device="cpu", halting_threshold=threshold)
        result = again.evaluate("dev", metrics=[], by=[])
        assert measured.score == result["token_accuracy"]
        assert measured.macs == result["macs"]
        depths = {stack: N_ROUNDS * (1 - share) for stack, share in measured.skipped.items()}
        assert depths == pytest.approx(result["depth"])
        assert result["n"] == found.n
    assert found.trained.thresholds == pytest.approx(TRAINED)
    assert found.points[1].thresholds == {"encoder": 0.8, "decoder": 0.8}
    # The lower the threshold the less runs, down to one round of each stack.
    for more, less in pairwise(found.points):
        assert all(more.skipped[stack] < less.skipped[stack] for stack in TRAINED)
        assert less.macs["realised"] < more.macs["realised"] < more.macs["full"]
    assert found.points[-1].skipped == {"encoder": 0.75, "decoder": 0.75}
    # Everything may be lost, so that the cheapest is chosen; the model is as it was loaded.
    assert found.chosen is found.points[-1]
    assert loaded.model.halting_thresholds() == pytest.approx(TRAINED)
    assert loaded.halting_threshold_from == "trained"


@pytest.mark.slow
def test_curve_and_choice_are_written_into_the_run(run: Path) -> None:
    found = tune_threshold(ostinato.load(run, device="cpu"), "dev", thresholds=[0.7], metric="token_accuracy")
    names = ["halting-threshold.json", "threshold-curve.json", "threshold-curve.svg", "threshold-curve.png"]
    assert [path.relative_to(run).as_posix() for path in found.files] == names
    assert all(path.stat().st_size > 100 for path in found.files)
    data = json.loads((run / "threshold-curve.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(found.as_dict()))
    assert (data["format"], data["split"], data["checkpoint"]) == (2, "dev", found.checkpoint)
    weights = weights_hash(ostinato.load(run, device="cpu").checkpoint)
    assert weights is not None
    chosen = TunedThreshold(found.chosen.threshold, found.checkpoint, "dev", "token_accuracy", 0.002, weights=weights)
    assert read_tuned(run) == chosen
    svg = (run / "threshold-curve.svg").read_text(encoding="utf-8")
    assert "<svg" in svg


def test_a_choice_is_for_the_weights_that_were_measured(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    loaded = ostinato.load(folder, device="cpu")
    wanted = weights_hash(loaded.checkpoint)

    def prune(point: Point) -> None:
        shutil.rmtree(loaded.checkpoint, ignore_errors=True)

    given = {"thresholds": [0.7], "metric": "token_accuracy", "max_examples": 5}
    assert tune_threshold(loaded, on_point=prune, **given).weights == wanted  # type: ignore[arg-type]
    tuned = read_tuned(folder)
    assert tuned is not None
    assert tuned.weights == wanted


def test_without_matplotlib_there_is_a_choice_and_no_figure(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.experiments.compare.thresholds.can_draw", lambda: False)
    loaded = ostinato.load(run, device="cpu")
    found = tune_threshold(loaded, thresholds=[0.7], metric="token_accuracy", max_examples=5)
    assert [path.name for path in found.files] == ["halting-threshold.json", "threshold-curve.json"]
    assert found.n == 5


@pytest.mark.parametrize("name", ["halting-threshold.json", "threshold-curve.json", "threshold-curve.svg"])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("ostinato.experiments.compare.thresholds.can_draw", lambda: True)
    monkeypatch.setattr("ostinato.evaluation.loading.LoadedRun.evaluate", lambda *given, **how: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=rf"{name}: is a link: only a plain file is written"):
        tune_threshold(ostinato.load(copy, device="cpu"), thresholds=[0.7], metric="token_accuracy")


@pytest.mark.slow
def test_the_metric_is_the_runs_first_and_decoded(run: Path) -> None:
    found = tune_threshold(ostinato.load(run, device="cpu"), thresholds=[0.5], max_examples=4)
    assert found.metric == "exact_match"
    assert all(p.decoding_seconds is not None and p.decoding_seconds <= p.seconds for p in found.points)
    found = tune_threshold(ostinato.load(run, device="cpu"), thresholds=[0.5], max_examples=4, metric="chrf", beam=2)
    assert found.perfect == 100


@pytest.mark.slow
def test_texts_are_judged_by_teacher_forcing(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a b c d\nb c d\nc d a b a\n" * 3, encoding="utf-8")
    decoder = {"n_steps": 3, "halting": {"kind": "stick_breaking"}, "self_attention": {"n_heads": 2, "share": "all"}}
    file = str(tmp_path / "texts.txt")
    recipe = {
        "task": {"kind": "files", "model_kind": "language_model"},
        "data": {"train": file, "dev": file},
        "model": {"kind": "language_model", "d_model": 8, "decoder": decoder | {"ffn": {"d_ff": 8, "share": "all"}}},
        "training": {"n_updates": 1, "device": "cpu", "n_threads": 1},
    }
    train(check_recipe(recipe), tmp_path / "run")
    draw_gates(tmp_path / "run")
    found = tune_threshold(ostinato.load(tmp_path / "run", device="cpu"), thresholds=[0.5])
    assert (found.metric, found.n, list(found.trained.skipped)) == ("token_accuracy", 9, ["decoder"])
    assert found.points[1].skipped["decoder"] > found.trained.skipped["decoder"]
    assert found.trained.decoding_seconds is None
    with pytest.raises(ConfigError, match=r"metric is 'exact_match': must be one of .*: texts are not decoded"):
        tune_threshold(ostinato.load(tmp_path / "run", device="cpu"), metric="exact_match")


@pytest.mark.slow
def test_what_cannot_be_swept_is_refused_with_the_reason(run: Path, tmp_path: Path) -> None:
    loaded = ostinato.load(run, device="cpu", halting_threshold=0.6)
    with pytest.raises(ConfigError) as error:
        tune_threshold(loaded, thresholds=[0.5, 1.5, float("nan")], max_drop=-0.1)
    assert str(error.value).splitlines() == [
        "thresholds is 1.5: must lie in [0, 1]",
        "thresholds is nan: must lie in [0, 1]",
        "max_drop is -0.1: must be at least 0",
    ]
    with pytest.raises(ConfigError, match=r"thresholds is \[\]: name at least one"):
        tune_threshold(loaded, thresholds=[])
    with pytest.raises(ConfigError, match=r"metric is 'sharpness': must be one of token_accuracy, .*exact_match"):
        tune_threshold(loaded, metric="sharpness")
    with pytest.raises(ConfigError, match=r"split is 'gen': the task \w+ has the splits train, dev"):
        tune_threshold(loaded, "gen")
    # Whatever went wrong, the model has the threshold it came with.
    assert loaded.model.halting_thresholds() == pytest.approx({"encoder": 0.6, "decoder": 0.6})
    plain = ostinato.load(plain_run(tmp_path / "plain"), device="cpu")
    with pytest.raises(ConfigError, match=r"model\.encoder\.halting\.kind is 'none': no token of .* can halt by"):
        tune_threshold(plain)


@pytest.mark.parametrize(
    ("of_encoder", "of_decoder", "named", "criteria"),
    [
        ("none", "none", "model.encoder.halting.kind is 'none'", CRITERIA_AT_TEST),
        ("length", "length", "model.encoder.halting.kind is 'length'", CRITERIA_AT_TEST),
        ("none", "token_choice", "model.decoder.halting.kind is 'token_choice'", ("change", "cosine")),
        ("token_choice", "token_choice", "model.encoder.halting.kind is 'token_choice'", ()),
    ],
)
def test_a_model_without_a_threshold_is_told_its_rule_and_the_criteria_that_it_can_follow(
    run: Path, of_encoder: str, of_decoder: str, named: str, criteria: tuple[str, ...]
) -> None:
    rules = [f"model.encoder.halting={{kind: {of_encoder}}}", f"model.decoder.halting={{kind: {of_decoder}}}"]
    loaded = ostinato.load(run, device="cpu")
    loaded = replace(loaded, model=without_memory(load_recipe("digits/universal", rules).model))
    with pytest.raises(ConfigError) as error:
        tune_threshold(loaded)
    advice = f"; --exit CRITERION stops tokens by {', '.join(criteria)}, without training" if criteria else ""
    reason = f"no token of {run} can halt by a threshold, so that there is none to choose{advice}"
    assert str(error.value) == f"{named}: {reason}"
    with pytest.raises(ConfigError) as error, loaded.model.execution(halting_threshold=0.5):
        pass
    advice = f"; with exit they stop by a criterion: {', '.join(criteria)}" if criteria else ""
    assert f"model.decoder.halting.kind is {of_decoder}){advice} (docs/halting.md)" in str(error.value)
    for criterion in CRITERIA_AT_TEST:  # what is named can be followed, and nothing else
        if criterion in criteria:
            loaded.model.checked(Execution(halting_threshold=0.5, exit=criterion))
        else:
            with pytest.raises(ConfigError, match=r"exit is"):
                loaded.model.checked(Execution(halting_threshold=0.5, exit=criterion))


def test_the_default_thresholds_go_from_the_papers_to_a_tenth() -> None:
    assert (THRESHOLDS[0], THRESHOLDS[-1]) == (0.999, 0.1)
    assert list(THRESHOLDS) == sorted(THRESHOLDS, reverse=True)
