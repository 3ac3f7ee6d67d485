from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ostinato.config.model import LanguageModelConfig
from ostinato.config.training import OptimizerConfig, SelectionConfig
from ostinato.data import disk
from ostinato.errors import CheckpointError
from ostinato.evaluation.loading import find_checkpoint
from ostinato.models import LanguageModel, build_model
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.optim import build_optimizer
from ostinato.training.parallel import Parallel
from ostinato.training.processes import SINGLE_PROCESS
from ostinato.training.rng import RandomState
from ostinato.training.state import Best, LossWindow, Progress
from ostinato.version import __version__

CPU = torch.device("cpu")


class _Run:
    """A model that is 'trained' by adding noise."""

    def __init__(self, root: Path, keep_last: int = 1, save_every: int = 1) -> None:
        torch.manual_seed(0)
        config = {"d_model": 4, "vocab_size": 6, "decoder": {"n_steps": 1, "self_attention": {"n_heads": 1}}}
        model = build_model(LanguageModelConfig.model_validate(config))
        assert isinstance(model, LanguageModel)
        self.model = model
        self.optimizer = build_optimizer(self.model, OptimizerConfig())
        self.checkpoints = Checkpoints(root / "checkpoints", keep_last, save_every)
        self.progress = Progress()

    def update(self, update: int, *, best: bool = False) -> None:
        for p in self.model.parameters():
            p.grad = torch.randn(p.shape)
        self.optimizer.step()
        self.progress.update = update
        if best or self.progress.best is None:
            self.progress.ranking = [Best(update, 1.0 / update)]

    def save(self, update: int, *, best: bool = False) -> Path:
        self.update(update, best=best)
        return self.write()

    def write(self, random_state: RandomState | None = None) -> Path:
        parallel = Parallel(self.model, SINGLE_PROCESS)
        randoms = [random_state or RandomState.capture()]
        return self.checkpoints.save(parallel, self.optimizer, self.progress, randoms, {})

    def updates_on_disk(self) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in self.checkpoints.root.glob("update-*"))


def _pointer(run: _Run, role: str) -> int:
    return int(json.loads((run.checkpoints.root / f"{role}.json").read_text())["update"])


def test_a_loaded_state_is_what_was_saved(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.progress.window = LossWindow(0.1 + 0.2, 1 / 3, 7)
    run.progress.batches = {"epoch": 3, "batch": 5}
    run.progress.metrics_bytes = 123
    run.update(10)
    random_state = RandomState.capture()
    expected = torch.randn(3), random.random()  # at once: threads that other tests have left may draw meanwhile
    run.write(random_state)
    saved = run.checkpoints.load(CPU)
    saved.randoms[0].restore()
    assert torch.equal(torch.randn(3), expected[0])
    assert random.random() == expected[1]
    assert saved.progress == run.progress
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(saved.model.state_dict()[name], tensor), name
    optimizer = build_optimizer(saved.model, OptimizerConfig())
    saved.restore_optimizer(optimizer)
    for left, right in zip(run.model.parameters(), saved.model.parameters(), strict=True):
        old, new = run.optimizer.state[left], optimizer.state[right]
        assert old.keys() == new.keys()
        assert all(torch.equal(old[key], new[key]) for key in old)


def test_a_checkpoint_holds_safetensors_and_json_only(tmp_path: Path) -> None:
    directory = _Run(tmp_path).save(10)
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["model.json", "model.safetensors", "state.json", "state.safetensors"]
    assert all(isinstance(json.loads(path.read_text()), dict) for path in directory.glob("*.json"))


@pytest.mark.parametrize("keep_last", [1, 2])
def test_the_newest_checkpoints_and_the_best_one_are_kept(tmp_path: Path, keep_last: int) -> None:
    run = _Run(tmp_path, keep_last)
    for update in (10, 20, 30, 40, 50):
        run.save(update, best=update == 20)
    assert run.updates_on_disk() == sorted({20, *(50, 40)[:keep_last]})
    assert (_pointer(run, "last"), _pointer(run, "best")) == (50, 20)
    run.save(60, best=True)
    assert run.updates_on_disk() == sorted((60, 50)[:keep_last])
    assert find_checkpoint(tmp_path, "best") == run.checkpoints.directory(60)


def test_what_was_saved_at_another_update_goes_once_there_is_a_later_one_unless_it_is_ranked(tmp_path: Path) -> None:
    run, kept = _Run(tmp_path, keep_last=2, save_every=10), []
    for update in (10, 20, 24, 27, 30, 35, 40, 50):
        run.save(update, best=update in (10, 35, 50))
        run.checkpoints.recover()
        assert run.checkpoints.load(CPU).progress.update == update
        kept.append(run.updates_on_disk())
    ranked_10 = [[10], [10, 20], [10, 20, 24], [10, 20, 27], [10, 20, 30]]
    assert kept == [*ranked_10, [30, 35], [30, 35, 40], [40, 50]]


def test_what_else_lies_among_the_checkpoints_is_left_alone_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = _Run(tmp_path)
    folder = run.save(10)
    mine = folder.with_name("update-000010-mine")
    shutil.copytree(folder, mine)
    (folder.with_name("update-") / "notes").mkdir(parents=True)
    folder.with_name("update-000099").write_text("a file")
    run.checkpoints.recover()
    run.save(20, best=True)
    assert run.checkpoints.last_update() == 20
    assert run.checkpoints.load(CPU).progress.update == 20
    assert (mine / "model.json").is_file()
    assert caplog.text.count(f"{mine} is no checkpoint of the run: it is ignored") == 1
    assert sorted(path.name for path in mine.parent.glob("update-*")) == [
        *("update-", "update-000010-mine", "update-000020", "update-000099")
    ]


class _Crash(BaseException):
    pass


def _operations(monkeypatch: pytest.MonkeyPatch, crash_at: int | None) -> list[str]:
    """Record every write that reaches the disk; crash just before number `crash_at`."""
    done: list[str] = []

    def wrap(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            if len(done) == crash_at:
                raise _Crash
            done.append(f"{name} {args[0]}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    wrap(disk, "sync")
    wrap(Path, "replace")
    wrap(Path, "rename")
    wrap(disk.shutil, "rmtree")
    return done


def _run_with_two_saves(root: Path) -> _Run:
    run = _Run(root)
    run.save(10)
    run.save(20, best=True)
    return run


def _number_of_operations(root: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        run = _run_with_two_saves(root)
        done = _operations(patch, None)
        run.save(30, best=True)
    return len(done)


def test_a_save_interrupted_at_any_write_leaves_a_whole_state_to_go_on_from(tmp_path: Path) -> None:
    n_operations = _number_of_operations(tmp_path / "count")
    assert n_operations >= 12
    seen = set()
    for crash_at in range(n_operations):
        root = tmp_path / str(crash_at)
        run = _run_with_two_saves(root)
        before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        with pytest.MonkeyPatch.context() as patch:
            _operations(patch, crash_at)
            with pytest.raises(_Crash):
                run.save(30, best=True)
        checkpoints = Checkpoints(root / "checkpoints", 1)
        checkpoints.recover()
        saved = checkpoints.load(CPU)
        update = saved.progress.update
        seen.add(update)
        expected = before if update == 20 else run.model.state_dict()
        assert all(torch.equal(saved.model.state_dict()[name], expected[name]) for name in expected)
        assert saved.progress.best is not None
        assert saved.progress.best.update == update
        assert find_checkpoint(root, "best") == checkpoints.directory(update)
        left = sorted(path.name for path in checkpoints.root.iterdir())
        assert left == ["best.json", "last.json", f"update-{update:06d}"], crash_at
    assert seen == {20, 30}


def test_an_interrupted_first_save_leaves_nothing(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _operations(patch, 3)
        with pytest.raises(_Crash):
            run.save(10)
    run.checkpoints.recover()
    assert list(run.checkpoints.root.iterdir()) == []
    assert run.checkpoints.last_update() is None
    with pytest.raises(CheckpointError, match="no checkpoint to go on from"):
        run.checkpoints.load(CPU)
    with pytest.raises(CheckpointError, match="has no best checkpoint yet"):
        find_checkpoint(tmp_path, "best")


def test_a_state_of_another_format_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    path = run.save(10) / "state.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 99'))
    with pytest.raises(CheckpointError, match=r"state\.json: format version 99, this ostinato \S+ reads 1"):
        run.checkpoints.load(CPU)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "model.safetensors", "model.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    run = _Run(tmp_path)
    path = run.save(10) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=name):
        run.checkpoints.load(CPU)


def _judged(mode: str, patience: int | None, values: list[float]) -> tuple[list[bool], Progress]:
    selection = SelectionConfig.model_validate({"mode": mode, "patience": patience})
    progress, verdicts = Progress(), []
    for update, value in enumerate(values, start=1):
        progress.update = update
        verdicts.append(progress.judge(value, selection))
    return verdicts, progress


def test_the_best_is_the_smallest_or_the_largest_and_ties_keep_the_earlier() -> None:
    assert _judged("min", None, [3.0, 2.0, 2.0, 4.0, 1.0])[0] == [True, True, False, False, True]
    assert _judged("max", None, [3.0, 2.0, 3.0, 4.0])[0] == [True, False, False, True]
    assert _judged("max", None, [3.0, 2.0, 3.0, 4.0])[1].best == Best(4, 4.0)


def test_as_many_as_are_kept_are_ranked_best_first() -> None:
    progress, selection = Progress(), SelectionConfig()
    is_ranked = []
    for update, value in enumerate([3.0, 2.0, float("nan"), 4.0, 2.0, 1.0, 2.0], start=1):
        progress.update = update
        progress.judge(value, selection, keep=3)
        is_ranked.append(progress.is_ranked)
    assert [(best.update, best.value) for best in progress.ranking] == [(6, 1.0), (2, 2.0), (5, 2.0)]
    assert is_ranked == [True, True, True, True, True, True, False]
    assert Progress.from_dict(json.loads(json.dumps(progress.to_dict()))) == progress


def test_a_state_of_one_best_checkpoint_is_read() -> None:
    content = Progress(update=7).to_dict()
    del content["ranking"]
    assert Progress.from_dict(content | {"best": None}).ranking == []
    assert Progress.from_dict(content | {"best": {"update": 3, "value": 0.5}}).best == Best(3, 0.5)


def test_checkpoints_that_are_ranked_are_kept_until_better_ones_come(tmp_path: Path) -> None:
    run, selection = _Run(tmp_path), SelectionConfig()
    kept = []
    for update, value in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 4.0), (50, 1.5)):
        run.update(update)
        run.progress.ranking = [one for one in run.progress.ranking if one.update != update]  # what `update` put there
        run.progress.judge(value, selection, keep=2)
        run.write()
        kept.append(run.updates_on_disk())
    assert kept == [[10], [10, 20], [20, 30], [20, 30, 40], [20, 50]]
    run.checkpoints.recover()
    assert run.updates_on_disk() == [20, 50]


def test_a_value_that_is_no_number_is_never_better_than_one() -> None:
    assert _judged("min", None, [float("nan"), 5.0, float("nan")])[0] == [True, True, False]


def test_patience_counts_evaluations_since_the_best_one() -> None:
    _, progress = _judged("min", 2, [3.0, 4.0, 2.0, 5.0])
    assert progress.stopped is None
    _, progress = _judged("min", 2, [3.0, 4.0, 2.0, 5.0, 6.0])
    assert progress.stopped == "no better loss in 2 evaluations"


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "state.safetensors", "state.json"])
def test_a_training_state_with_one_other_bit_is_refused(tmp_path: Path, name: str) -> None:
    run = _Run(tmp_path)
    path = run.save(1) / name
    whole = bytearray(path.read_bytes())
    written = __version__.encode()
    place = whole.index(written) + 2 if written in whole else len(whole) - 3
    whole[place] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=rf"{name}: not the file that was written"):
        run.checkpoints.load(CPU)


def test_states_of_earlier_versions_have_no_hashes_but_must_be_complete(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    folder = run.save(1)
    state = json.loads((folder / "state.json").read_text())
    del state["sha256"], state["content_sha256"]
    for wrong, reason in (({}, "KeyError..update"), ({"update": 0}, "is of update 0, and its folder of another")):
        others = {key: value for key, value in state["progress"].items() if key != "update"}
        (folder / "state.json").write_text(json.dumps(state | {"progress": others | wrong}))
        with pytest.raises(CheckpointError, match=reason):
            run.checkpoints.load(CPU)
    (folder / "state.json").write_text(json.dumps(state))
    saved = run.checkpoints.load(CPU)
    saved.restore_optimizer(build_optimizer(saved.model, OptimizerConfig()))
    key = next(key for key in saved.optimizer if key.startswith("exp_avg/"))
    for broken in (
        {k: x for k, x in saved.optimizer.items() if k != key},
        saved.optimizer | {key: torch.full_like(saved.optimizer[key], float("nan"))},
    ):
        with pytest.raises(CheckpointError, match=r"has no exp_avg|not finite"):
            replace(saved, optimizer=broken).restore_optimizer(build_optimizer(saved.model, OptimizerConfig()))
