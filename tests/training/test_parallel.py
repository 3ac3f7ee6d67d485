"""Processes that hold a model by `training.parallel` do what one process does, in updates, runs and checkpoints."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import held_updates
import launched
import parallel_worker
import pytest
import shared_updates
import torch
from held_updates import TOLERANCE
from safetensors.torch import load_file
from tiny_runs import last_checkpoint, weights
from torch import Tensor

from ostinato.models import Model, build_model
from ostinato.training import sharding, train
from ostinato.training.parallel import why_not_ddp
from ostinato.training.processes import Processes
from ostinato.training.sharding import Sharded

WORKER = Path(__file__).parent / "parallel_worker.py"
SHARDED = ("kept", "by use")


def _ended(folder: Path, *arguments: str, n: int = 2) -> Path:
    for rank, (code, said) in enumerate(launched.launch(WORKER, str(folder), *arguments, n=n)):
        assert code == 0, f"process {rank}: {said}"
    return folder


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.sampled
@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("name", ["recomputed", "tables"])
@pytest.mark.parametrize("kind", SHARDED)
def test_gathered_sets_compute_what_whole_ones_do(tmp_path: Path, kind: str, name: str) -> None:
    case = shared_updates.CASES[name](tmp_path)
    found, _ = shared_updates.updates(case, Processes(), held_updates.hold(kind, Processes()))
    expected, _ = shared_updates.updates(case)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=1e-6, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.usefixtures("group_of_one")
def test_to_put_the_whole_model_together_draws_nothing(tmp_path: Path) -> None:
    recipe, _ = shared_updates.CASES["recomputed"](tmp_path)
    sharded = held_updates.hold("kept", Processes())(shared_updates.shared_model(recipe), recipe.training)
    before = torch.get_rng_state()
    assert isinstance(sharded, Sharded)
    assert sharded.whole_model() is not None
    assert torch.equal(torch.get_rng_state(), before), "an evaluation would else change the dropout of later updates"


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("name", ["recomputed", "tables", "halting"])
def test_the_whole_model_is_made_without_weights_and_given_all_of_them(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, _ = shared_updates.CASES[name](tmp_path)
    model, made = shared_updates.shared_model(recipe), set[str]()
    expected = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    sharded = held_updates.hold("kept", Processes())(model, recipe.training)
    assert isinstance(sharded, Sharded)

    def noted(*given: Any) -> Model:
        built = build_model(*given)
        made.update(parameter.device.type for parameter in built.parameters())
        return built

    monkeypatch.setattr(sharding, "build_model", noted)
    whole = sharded.whole_model()
    assert made == {"meta"}
    assert whole is not None
    assert not [*whole.buffers()], "a number that is no parameter would be that of uninitialised memory"
    found = whole.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def _is_for_ddp(name: str, folder: Path) -> bool:
    recipe, _ = shared_updates.CASES[name](folder)
    return why_not_ddp(shared_updates.shared_model(recipe), recipe.training) is None


def test_ddp_is_for_updates_that_compute_the_same_whatever_their_data(tmp_path: Path) -> None:
    of_ddp = {name for name in shared_updates.CASES if _is_for_ddp(name, tmp_path)}
    assert of_ddp > {"universal", "universal, recomputed", "language model", "experts, switch", "window"}
    assert not {"halting", "injected", "consistent", "rounds by sentence", "rounds by length"} & of_ddp


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_every_case_is_that_of_one_process(tmp_path: Path, n: int) -> None:
    folder = _ended(tmp_path, "updates", "none", "kept", "by use", "ddp", n=n)
    of_ddp = [name for name in shared_updates.CASES if _is_for_ddp(name, tmp_path / "here")]
    for name in shared_updates.CASES:
        for kind in ("none", *SHARDED, *(["ddp"] if name in of_ddp else [])):
            held_updates.assert_updates(folder, kind, name, tmp_path / "here")


def _apart(one: dict[str, Tensor], other: dict[str, Tensor], what: str) -> float:
    """Return the distance between all gradients, or all weights, of two sets of tensors of the same names."""
    assert one.keys() == other.keys()
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one if name.startswith(what)) ** 0.5)


@pytest.mark.slow
def test_in_bfloat16_processes_are_apart_by_less_than_it_is_from_float32(tmp_path: Path) -> None:
    """Gradients of rows are rounded before they are added up: not where one process would round them."""
    names = ("universal, recomputed", "everything", "exit", "language model")
    _ended(tmp_path, "lowered", "none", *names)
    _ended(tmp_path, "lowered", "kept", *names)
    for name in names:
        case = shared_updates.CASES[name](tmp_path / "here")
        one, _ = shared_updates.updates(shared_updates.lowered(case), n_updates=held_updates.N_UPDATES)
        exact, _ = shared_updates.updates(case, n_updates=held_updates.N_UPDATES)
        none, kept = (load_file(tmp_path / f"{kind}-{name}.safetensors") for kind in ("none", "kept"))
        for found in (none, kept):
            assert _apart(found, one, "gradient/") < _apart(exact, one, "gradient/") / 4, name
        assert _apart(kept, none, "weight/") < _apart(exact, one, "weight/") / 50, name


def _assert_runs(found: Path, expected: Path) -> None:
    """Compare the last weights of two runs."""
    one, other = (load_file(last_checkpoint(run) / "model.safetensors") for run in (found, expected))
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        torch.testing.assert_close(one[name], tensor, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, k=name: f"{k}: {m}")


@pytest.mark.slow
def test_a_run_of_four_goes_on_with_two_and_one_without_a_pickle(tmp_path: Path) -> None:
    for name in ("two", "one", "plain"):
        _ended(tmp_path, "train", name, "kept", "4", n=4)
        files = {path.name for path in (last_checkpoint(tmp_path / name) / "optimizer").iterdir()}
        assert files == {f"shard-{rank:05}-model-00001-of-00001.safetensors" for rank in (1, 2, 3, 4)}
    for name, kind, n in (("two", "by use", 2), ("one", "kept", 1), ("plain", "none", 2)):
        _ended(tmp_path, "train", name, kind, "8", n=n)
        results = json.loads((tmp_path / f"{name}-0.json").read_text(encoding="utf-8"))
        assert (results["n_updates"], results["processes"]) == (8, n)
        _assert_runs(tmp_path / name, _alone(tmp_path))


def _alone(folder: Path) -> Path:
    if not (folder / "alone").exists():
        train(parallel_worker.run_recipe(folder, "none", 8), folder / "alone")
    return folder / "alone"


@pytest.mark.slow
def test_a_run_of_one_goes_on_with_three_that_hold_parts(tmp_path: Path) -> None:
    _ended(tmp_path, "train", "run", "none", "4", n=1)
    _ended(tmp_path, "train", "run", "kept", "8", n=3)
    _assert_runs(tmp_path / "run", _alone(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "kept", "ddp"])
def test_a_process_that_is_killed_ends_all_with_one_message_and_the_run_goes_on(tmp_path: Path, kind: str) -> None:
    ended = launched.launch(WORKER, str(tmp_path), "killed", "run", kind, n=3)
    assert ended[-1][0] == -9
    for code, said in ended[:-1]:
        assert code == 1
        assert said.count("TrainingError: the other processes of this run cannot be reached") == 1
    assert last_checkpoint(tmp_path / "run").name == "update-000004"
    _ended(tmp_path, "train", "run", kind, "8", n=3)
    _ended(tmp_path, "train", "undisturbed", kind, "8", n=3)
    if kind == "ddp":  # its buckets are laid anew after the first update of a process: sums have another order
        _assert_runs(tmp_path / "run", tmp_path / "undisturbed")
        return
    assert weights(tmp_path / "run") == weights(tmp_path / "undisturbed")
    for name in ("metrics.jsonl", "recipe.yaml"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


_ENDS_BEFORE_TRAINING = """
import os
from pathlib import Path
from ostinato.cli import main
device = "training.device=" + ("meta" if os.environ["RANK"] == "1" else "cpu")
folder = Path(__file__).parent / "run"
main(["train", "digits/transformer", "task.n_train=50", "task.n_eval=10", device, "--run-dir", str(folder)])
"""


@pytest.mark.slow
def test_a_process_that_ends_before_the_training_leaves_no_other_waiting(tmp_path: Path) -> None:
    script = tmp_path / "begin.py"
    script.write_text(_ENDS_BEFORE_TRAINING)
    (left, said), (ended, reason) = launched.launch(script)
    assert (left, ended) == (1, 2)
    assert "the other processes of this run cannot be reached" in said
    assert "several processes need 'cuda' or 'cpu'" in reason


@pytest.mark.slow
def test_processes_that_do_not_agree_on_rounds_never_end_well(tmp_path: Path) -> None:
    agreed, naive = tmp_path / "agreed", tmp_path / "naive"
    for folder in (agreed, naive):
        folder.mkdir()
    _ended(agreed, "rounds", "all")
    assert _of_both(agreed) == {"began-0", "began-1", "ended-0", "ended-1"}
    # They wait for each other for ever, or one gets what it did not ask for.
    ended = launched.launch(WORKER, str(naive), "rounds", "each")
    assert all(code == -signal.SIGALRM or (code and "gloo" in said) for code, said in ended), ended
    assert {"began-0", "began-1"} <= _of_both(naive) < _of_both(agreed)


def _of_both(folder: Path) -> set[str]:
    """Return what the processes have noted of an update."""
    return {path.name for what in ("began", "ended") for path in folder.glob(f"{what}-*")}


@pytest.mark.slow
def test_experts_that_are_gathered_one_by_one_are_silently_wrong(tmp_path: Path) -> None:
    _ended(tmp_path, "naive-experts")
    for rank in (0, 1):
        errors = json.loads((tmp_path / f"errors-{rank}.json").read_text(encoding="utf-8"))
        assert errors["experts"] > 0.1
        assert errors["layer"] < 1e-6
