from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from tables import Formula
from tiny_question import TINY, question

from ostinato.advise.advise import ANSWER, RECIPE, TRIALS, Advice, _read, advise
from ostinato.advise.candidates import BASE
from ostinato.advise.checks import NoAdviceError
from ostinato.advise.halving import Halving
from ostinato.advise.limits import LatencyLimit, Limits
from ostinato.advise.report import FIGURE
from ostinato.advise.trials import TimeUp, Trial, TrialOutcome
from ostinato.analysis.report import svg_data
from ostinato.budget import count_parameters
from ostinato.cli import main
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig
from ostinato.errors import ConfigError
from ostinato.evaluation.timing import Effort
from ostinato.experiments.sweep.executors import InProcess
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model

HERE = Path(__file__).parent
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'ostinato[ray]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advice")


def loss(trial: Trial) -> float:
    """One that falls with the updates, lowest for shared weights at their own rate."""
    own = {BASE: 0.3, "shared": 0.1, "deep": 0.2}[trial.candidate]
    return own + 1 / trial.updates + 0.01 * trial.seed * own


@contextmanager
def without_training(draws: bool = False) -> Iterator[Formula]:
    """Answer questions by a formula; figures take longest."""
    trainer = Formula(loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ostinato.advise.advise.SweepTrainer", lambda *_, **__: trainer)
        patch.setattr("ostinato.advise.latency.LATENCY_EFFORT", Effort(rounds=1, least=1, warmup=0, repeats=0))
        patch.setattr("ostinato.advise.advise.MOST_SEEDS", 3)
        if not draws:
            patch.setattr("ostinato.advise.report.can_draw", lambda: False)
        yield trainer


@pytest.fixture(scope="module")
def advice(folder: Path) -> Advice:
    with without_training(draws=True):
        return advise(question(folder))


def test_the_recipe_that_is_advised_can_be_trained_and_costs_the_budget(advice: Advice) -> None:
    recipe = load_recipe(advice.recipe)
    best = advice.answer.best
    assert count_parameters(size_model(recipe).model).stored == best.figures["parameters"]
    assert recipe.training.optimizer.lr == pytest.approx(0.01 * best.rate)
    assert recipe.training.n_updates == 45, "the recipe's own, not a stage's"
    assert "n_train: 200" in advice.recipe.read_text("utf-8")


def test_candidates_of_other_tokenizers_are_not_compared_by_what_is_a_mean_over_tokens(tmp_path: Path) -> None:
    levels = [LevelConfig(name=kind, set={"data.tokenizer": {"kind": kind}}) for kind in ("words", "bpe")]
    axis = AxisConfig(name="tokens", levels=levels)
    asked = question(tmp_path, space=SpaceConfig(name="tokens", axes=[axis], n_candidates=2))
    for metric in (None, "perplexity", "token_accuracy"):
        with pytest.raises(ConfigError) as caught:
            _read(replace(asked, metric=metric), None)
        assert str(caught.value) == (
            f"training.selection.metric is {metric or 'loss'!r}: is a mean over tokens, and those of the recipe and of "
            "bpe are not the same: choose by --metric bits_per_byte or word_perplexity (of texts), or by one of outputs"
        )
    assert len(_read(replace(asked, metric="exact_match"), None).candidates.found) == 2
    assert len(_read(replace(asked, metric="sequence_accuracy_forced"), None).candidates.found) == 2
    unknown = replace(asked, metric="sequence_accuracy_forced", overrides=(*TINY, "data.unknown=replace"))
    with pytest.raises(ConfigError) as caught:
        _read(unknown, None)
    assert str(caught.value) == (
        "training.selection.metric is 'sequence_accuracy_forced': counts unknown tokens that are predicted as right, "
        "and those of the recipe and of bpe are not the same: choose by one of outputs"
    )


def test_a_seed_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(replace(question(tmp_path, overrides=("seed=7",)), source="not-there.jsonl"), None)
    assert str(caught.value) == "seed is 7: the search trains seeds 1 to 5: remove it"


def test_every_candidate_stands_somewhere(advice: Advice) -> None:
    assert advice.answer.is_complete
    assert {len(one.scores) for one in advice.answer.standings} == {3}
    assert [one.name for one in advice.answer.standings] == ["shared", "deep", BASE]
    assert {one.updates for one in advice.answer.standings} == {45}


def test_the_answer_is_written_as_a_page_trials_and_json(advice: Advice, folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "answer" / TRIALS).read_text("utf-8").splitlines()]
    assert len(rows) == len(advice.outcomes) == 3 + 3 + 9
    assert sorted({row["trial"]["updates"] for row in rows}) == [5, 15, 45]
    found = json.loads((folder / "answer" / ANSWER).read_text("utf-8"))
    assert found["recommended"] == advice.answer.best.name
    page = advice.report.read_text("utf-8")
    assert advice.answer.best.name in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_the_figure_of_the_page_has_every_candidate_and_every_cost(advice: Advice, folder: Path) -> None:
    drawn = (folder / "answer" / f"{FIGURE}.svg").read_bytes()
    assert svg_data(drawn) in advice.report.read_text("utf-8")
    text = drawn.decode("utf-8")
    costs = ["parameters", "multiply-accumulates", "bytes", "seconds"]
    assert [name for name in ["shared", "deep", BASE, *costs] if name not in text] == []


def test_asked_again_the_answer_is_the_same(advice: Advice, folder: Path) -> None:
    with without_training():
        assert advise(question(folder)).as_dict() == advice.as_dict()


@pytest.mark.slow
def test_the_command_shows_its_stages_and_what_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(question(tmp_path).space.model_dump()), encoding="utf-8")
    command = ["advise", "digits/transformer", *TINY, "--space", "tiny.yaml", "--hours", "1", "--out", "here"]
    with without_training(), pytest.raises(SystemExit) as end:
        main(command)
    written = capsys.readouterr()
    assert (end.value.code, written.err) == (0, "")
    assert "advised: shared: loss 0.1" in written.out
    assert "stage 3: 3 candidates, 45 updates" in written.out
    assert written.out.endswith("report: here/report.html\n")


def test_the_command_writes_its_answer_as_json_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(question(tmp_path).space.model_dump()), encoding="utf-8")
    command = ["advise", "digits/transformer", *TINY, "--space", "tiny.yaml", "--hours", "1", "--out", "here", "--json"]
    with without_training(), pytest.raises(SystemExit) as end:
        main(command)
    written = capsys.readouterr()
    assert (end.value.code, written.err) == (0, "")
    assert json.loads(written.out) == json.loads(Path("here", ANSWER).read_text("utf-8"))
    assert json.loads(written.out)["recommended"] == "shared"


def test_other_data_under_the_same_name_is_another_question(tmp_path: Path) -> None:
    rows = [{"source": f"{i:03}", "target": f"{i:03}"[::-1]} for i in range(400)]
    own = question(tmp_path, overrides=("model.d_model=16", "model.encoder.ffn.d_ff=64", "model.decoder.ffn.d_ff=64"))
    for turned, folder in ((False, "a"), (True, "b")):
        file = tmp_path / folder / "mine.jsonl"
        file.parent.mkdir()
        lines = [{"source": r["target"], "target": r["source"]} if turned else r for r in rows]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        asked = replace(own, source=str(file))
        with without_training() as trainer:
            trainer.score = lambda trial: 0.01 + 1 / trial.updates
            if not turned:
                advise(asked)
                before = (tmp_path / "answer" / RECIPE).read_text()
            else:
                with pytest.raises(ConfigError, match="or of other data"):
                    advise(asked)
    assert (tmp_path / "answer" / RECIPE).read_text() == before


def test_another_question_is_refused_in_one_line(advice: Advice, folder: Path) -> None:
    with without_training(), pytest.raises(ConfigError, match="holds the search of another recipe, budget, space or"):
        advise(question(folder, metric="token_accuracy"))


def test_too_few_hours_are_refused_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hours is too short: two trainings of the recipe"):
        advise(question(tmp_path, hours=0.001), make_executor=InProcess)


def test_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.selection\.metric is 'blue'"):
        advise(question(tmp_path, metric="blue"), make_executor=InProcess)


@pytest.mark.slow
def test_the_metric_that_was_asked_for_is_in_the_recipe(tmp_path: Path) -> None:
    with without_training():
        found = advise(question(tmp_path, metric="perplexity"))
    assert load_recipe(found.recipe).training.selection.metric == "perplexity"


@pytest.mark.parametrize("hours", [math.inf, math.nan])
def test_hours_are_a_number(tmp_path: Path, hours: float) -> None:
    with pytest.raises(ConfigError, match=r"--hours is '?(inf|nan)'?: must be a number of hours"):
        advise(question(tmp_path, hours=hours), make_executor=InProcess)


def test_a_page_of_another_program_is_refused_before_the_search(tmp_path: Path) -> None:
    page = tmp_path / "answer" / "report.html"
    page.parent.mkdir()
    page.write_text("mine")
    with pytest.raises(ConfigError, match="was not written by this command"):
        advise(question(tmp_path), make_executor=InProcess)
    assert page.read_text() == "mine"


def test_failures_are_written_as_json(tmp_path: Path) -> None:
    with without_training() as trainer:
        trainer.score = lambda trial: None if trial.candidate == "deep" else loss(trial)
        advise(question(tmp_path))
    lines = (tmp_path / "answer" / TRIALS).read_text("utf-8").splitlines()
    rows = [json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")) for line in lines]
    assert [row["loss"] for row in rows if row["score"] is None] == [None]


def test_a_latency_that_was_not_asked_for_ends_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise ConfigError("the longest source is 8 tokens")

    with without_training():
        monkeypatch.setattr("ostinato.advise.latency.Timer.measure", refuse)
        found = advise(question(tmp_path))
    assert "latency" not in found.answer.best.figures


@pytest.mark.slow
def test_a_latency_that_nothing_meets_is_no_advice(tmp_path: Path) -> None:
    limits = Limits(parameters=20_000, latency=LatencyLimit(1e-6))
    with (
        without_training(),
        pytest.raises(NoAdviceError, match=r"none is as fast as asked: .+, the fastest, takes .+ ms"),
    ):
        advise(question(tmp_path, limits=limits))
    assert not (tmp_path / "answer" / RECIPE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1e-6, 60.0])
def test_nothing_is_advised_for_a_latency_that_was_not_measured(tmp_path: Path, seconds: float) -> None:
    limits = Limits(parameters=20_000, latency=LatencyLimit(seconds))
    with without_training() as trainer:
        trainer.most = 2 + 3 + 1  # time is up before the last stage, whose candidates are measured
        if seconds < 1:
            with pytest.raises(NoAdviceError, match="none is as fast as asked"):
                advise(question(tmp_path, limits=limits))
        else:
            found = advise(question(tmp_path, limits=limits))
            assert not found.answer.is_complete
            assert found.answer.best.figures["latency"] < seconds


def test_the_recipe_is_measured_where_it_is_the_best_of_the_last_stage_also_without_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OutOfTime(Clocked):
        last = 0

        def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
            self.last = max(self.last, *(trial.updates for trial in trials)) if stage == "stage 2" else 0
            if "seed" in stage:
                self.now = self.deadline
            return super().train(stage, trials)

    # The recipe is the last one until the last stage, to which it goes unasked, and where it is the first one.
    trainer = OutOfTime(lambda trial: 0.1 if trial.candidate == BASE and trial.updates == trainer.last else loss(trial))

    def made(*_: object, deadline: float, **__: object) -> OutOfTime:
        trainer.deadline = deadline
        return trainer

    limits = Limits(parameters=20_000, latency=LatencyLimit(60.0))
    with without_training():
        monkeypatch.setattr("ostinato.advise.advise.Halving", partial(Halving, n_final=1))
        monkeypatch.setattr("ostinato.advise.advise.SweepTrainer", made)
        for module in ("advise", "pace", "latency"):
            monkeypatch.setattr(f"ostinato.advise.{module}.time", trainer)
        found = advise(question(tmp_path, limits=limits, overrides=(*TINY, "training.n_updates=100000")))
    assert trainer.now == trainer.deadline
    assert found.answer.best.name == BASE
    assert found.answer.best.figures["latency"] < 60.0


def test_a_score_that_a_count_reaches_is_no_advice(tmp_path: Path) -> None:
    with without_training() as trainer:
        trainer.score = lambda trial: 9.0
        with pytest.raises(NoAdviceError, match=r"no better than .* without a model"):
            advise(question(tmp_path))
    assert (tmp_path / "answer" / TRIALS).is_file(), "what was tried can be looked at"


def test_where_time_is_up_the_answer_says_how_far_it_came(tmp_path: Path) -> None:
    with without_training() as trainer:
        trainer.most = 2 + 3 + 3 + 1
        found = advise(question(tmp_path))
    assert not found.answer.is_complete
    assert found.answer.best.stage == 2
    assert "the last stage was not finished" in found.report.read_text("utf-8")


class Clocked(Formula):
    """A trainer whose trainings move a clock that nothing else moves; at the deadline time is up."""

    now, deadline = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        for trial in trials:
            seconds = 0.0 if trial in self.trained else self.outcome(trial).seconds
            self.now = min(self.now + seconds, self.deadline)
            if self.now == self.deadline:
                raise TimeUp
            self.trained.append(trial)
        return self.done(stage, trials)


def test_the_hours_are_those_of_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, hours = Clocked(loss), 1.0

    def made(*_: object, deadline: float, **__: object) -> Clocked:
        trainer.deadline = deadline
        return trainer

    with without_training():
        monkeypatch.setattr("ostinato.advise.advise.SweepTrainer", made)
        monkeypatch.setattr("ostinato.advise.advise.time", trainer)
        monkeypatch.setattr("ostinato.advise.pace.time", trainer)
        found = advise(question(tmp_path, hours=hours, overrides=(*TINY, "training.n_updates=100000")))
    assert found.answer.is_complete
    assert 0.5 * 3600 * hours < trainer.now <= trainer.deadline < 0.98 * 3600 * hours, "the rest is for the answer"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answer of one worker that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, str(HERE / "tiny_question.py"), str(folder), "1"], env=environment, check=True)
    return answer_in(folder)


def answer_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "answer" / ANSWER).read_text("utf-8"))
    return found


def check_same(found: dict[str, Any], whole: dict[str, Any]) -> None:
    """Check that answers are of the same scores; how many seeds there was time for may differ, and what they say."""
    own, other = ({one["name"]: one["scores"] for one in answer["candidates"]} for answer in (found, whole))
    assert own.keys() == other.keys()
    common = {name: own[name].keys() & other[name].keys() for name in own}
    assert all("1" in seeds for seeds in common.values())
    assert all(own[name][seed] == other[name][seed] for name in own for seed in common[name])
    if all(own[name].keys() == other[name].keys() for name in own):
        assert found["recommended"] == whole["recommended"]


@pytest.mark.slow
def test_killed_it_goes_on_to_the_same_answer(tmp_path: Path, whole: dict[str, Any]) -> None:
    command = [sys.executable, str(HERE / "tiny_question.py"), str(tmp_path), "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for n_finished in (2, 7):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
            while len(list((tmp_path / "store").glob("*/results.json"))) < n_finished:
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "answer" / RECIPE).exists()
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").glob("*/results.json")}
    subprocess.run(command, env=environment, check=True)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items()), "what was done stays"
    check_same(answer_in(tmp_path), whole)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=needs_ray)])
def test_two_workers_find_the_answer_of_one(executor: str, tmp_path: Path, whole: dict[str, Any]) -> None:
    asked = question(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(asked.space.model_dump()), encoding="utf-8")
    command = [sys.executable, "-m", "ostinato", "advise", "digits/transformer", *TINY, "--hours", "1"]
    command += ["--space", str(tmp_path / "tiny.yaml"), "--out", str(asked.out), "--store", str(asked.store)]
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as short:  # the names of Ray's sockets are
        environment = os.environ | {"RAY_TMPDIR": short}
        subprocess.run([*command, "--workers", "2", "--executor", executor], env=environment, check=True)
    check_same(answer_in(tmp_path), whole)


@pytest.mark.slow
def test_a_training_that_would_take_days_is_stopped_and_said_not_to_be_done(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "tiny_question.py"), str(tmp_path), "0.03", "long"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "no advice: no candidate could be trained: none was finished in the time" in ended.stderr
    (begun,) = (path for path in (tmp_path / "store").glob("*/recipe.yaml") if "10000000" in path.read_text("utf-8"))
    assert not (begun.parent / "results.json").exists()
