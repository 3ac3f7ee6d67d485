"""Two processes that train one run do what one process does with the same batches; they end together, or go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import held_updates
import launched
import pytest
import shared_updates
import torch
from filelock import FileLock
from process_worker import HELD, INTERRUPTED_IN
from safetensors.torch import load_file
from tiny_runs import last_checkpoint, records, tiny_recipe, weights

from ostinato.nn import balance
from ostinato.nn.act import Act
from ostinato.nn.stick_breaking import StickBreaking
from ostinato.training import Reporter, train

WORKER = Path(__file__).parent / "process_worker.py"
Ended = tuple[int, str]


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended]]:
    """What two processes did in the cases that are tested, and how they ended; of several workers one starts them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "together"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            _launch(request, folder)
    ended = json.loads((folder / "ended.json").read_text(encoding="utf-8"))
    for rank, (_, said) in enumerate(ended):
        assert (folder / f"until-then-{rank}").exists(), said
    return folder, [(code, said) for code, said in ended]


def _launch(request: pytest.FixtureRequest, folder: Path) -> None:
    """Run the cases, and write how the processes ended."""
    mine = [vars(item) for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    tested = {*shared_updates.QUICK, "halting", *(own["callspec"].params.get("name") for own in mine)}
    names = [name for name in shared_updates.CASES if name in tested]
    (folder / "ended.json").write_text(json.dumps(launched.launch(WORKER, str(folder), *names)), encoding="utf-8")


def _assert_close(found: Any, expected: Any, path: str = "") -> None:
    """Compare records whose numbers differ by the order of their sums."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key, value in expected.items():
            _assert_close(found[key], value, f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for one, other in zip(found, expected, strict=True):
            _assert_close(one, other, path)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5), path
    else:
        assert found == expected, path


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in shared_updates.QUICK))
        for name in shared_updates.CASES
    ],
)
def test_updates_are_those_of_one_process_with_the_same_batches(
    together: tuple[Path, list[Ended]], tmp_path: Path, name: str
) -> None:
    folder, _ = together
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))[name]
    expected, said = shared_updates.updates(shared_updates.CASES[name](tmp_path))
    found = load_file(folder / f"{name}.safetensors")
    # A parameter without a gradient has none in several processes either.
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=1e-6, rtol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
    for one, gradient in zip(report["said"], said, strict=True):
        assert one["n_labels"] == gradient.n_labels
        for what in ("losses", "nlls", "norm", "consistency", "routing", "depth"):
            _assert_close(one[what], getattr(gradient, what), what)
    first, second = report["processes"]
    assert first["losses"] == second["losses"] == [one["losses"] for one in report["said"]]


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, cases in HELD.items() for case in cases])
def test_processes_that_hold_a_model_otherwise_do_the_same(
    together: tuple[Path, list[Ended]], tmp_path: Path, kind: str, case: str
) -> None:
    held_updates.assert_updates(together[0], kind, case, tmp_path, shared_updates.N_UPDATES)


def test_processes_go_to_different_depths_and_experts_are_empty_in_one_of_them(
    together: tuple[Path, list[Ended]], tmp_path: Path
) -> None:
    folder, _ = together
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    n_gradients = {name: [one["n_gradients"] for one in found["processes"]] for name, found in report.items()}
    # Sets of rounds that the second process did not run have no gradient there.
    first, second = n_gradients["halting"]
    assert 0 < second < first
    assert n_gradients["one row"][1] == 0
    assert all(min(n_gradients[name]) > 0 for name in report if name != "one row")
    (one, other) = (found["rounds"] for found in report["halting"]["processes"])
    model = shared_updates.shared_model(shared_updates.CASES["halting"](tmp_path)[0])
    assert {type(stack.halting) for stack in model.stacks.values()} == {Act, StickBreaking}
    assert all(one[name] != other[name] for name in model.stacks), (one, other)
    recipe, [batch, _] = shared_updates.CASES["experts, switch"](tmp_path)
    loads = []
    for rows in (slice(0, None, 2), slice(1, None, 2), slice(None)):
        routings = shared_updates.shared_model(recipe)(batch.rows(rows)).by_router()
        loads.append({name: balance.load(mine).fraction_E for name, mine in routings.items()})
    one, other, both = loads
    empty = {name: ((one[name] == 0) | (other[name] == 0)) & (both[name] > 0) for name in both}
    assert any(bool(found.any()) for found in empty.values())


def test_a_run_that_one_process_is_told_to_interrupt_goes_on_bit_for_bit(together: tuple[Path, list[Ended]]) -> None:
    folder, _ = together
    assert all((folder / f"interrupted-{rank}").exists() for rank in (0, 1))
    # The update that was under way was finished by both.
    assert records(folder / "interrupted", "training")[-1]["update"] == INTERRUPTED_IN - 1
    undisturbed, resumed = folder / "undisturbed", folder / "resumed"
    assert weights(resumed) == weights(undisturbed)
    for name in ("metrics.jsonl", "recipe.yaml", "data.json"):
        assert (resumed / name).read_bytes() == (undisturbed / name).read_bytes(), name
    states = [last_checkpoint(run) / "state.safetensors" for run in (resumed, undisturbed)]
    assert states[0].read_bytes() == states[1].read_bytes()
    assert len({record["update"] for record in records(resumed, "training")}) == len(records(resumed, "training"))


def test_every_process_draws_its_own_numbers_and_knows_the_results(together: tuple[Path, list[Ended]]) -> None:
    folder, _ = together
    run = folder / "undisturbed"
    state = load_file(last_checkpoint(run) / "state.safetensors")
    assert not torch.equal(state["random/cpu"], state["random-1/cpu"])
    content = json.loads((last_checkpoint(run) / "state.json").read_text(encoding="utf-8"))
    assert content["processes"] == 2
    assert len(content["random_of_others"]) == 1
    written = json.loads((folder / "resumed" / "results.json").read_text(encoding="utf-8"))
    assert written["processes"] == 2
    for rank in (0, 1):
        assert json.loads((folder / f"results-{rank}.json").read_text(encoding="utf-8")) == written


def test_a_run_without_chance_is_that_of_one_process(together: tuple[Path, list[Ended]], tmp_path: Path) -> None:
    folder, _ = together
    train(shared_updates.still(tiny_recipe(tmp_path / "data", n_updates=4)), tmp_path / "run")
    for kind in ("training", "evaluation"):
        _assert_close(records(folder / "still", kind), records(tmp_path / "run", kind))


class _Warnings(Reporter):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_warning(self, update: int, message: str) -> None:
        self.messages.append(message)


def test_another_number_of_processes_goes_on_with_a_warning(together: tuple[Path, list[Ended]], tmp_path: Path) -> None:
    folder, _ = together
    shutil.copytree(folder / "interrupted", tmp_path / "run")
    recipe = tiny_recipe(folder / "data", experts=True, halting=True, n_updates=8, evaluate_every=4)
    reporter = _Warnings()
    results = train(recipe, tmp_path / "run", resume=True, reporter=reporter)
    assert (results["n_updates"], results["processes"]) == (8, 1)
    [message] = [message for message in reporter.messages if "process" in message]
    assert message.startswith("goes on with 1 process(es), was saved by 2")
    assert weights(tmp_path / "run") != weights(folder / "undisturbed")


def test_a_loss_that_is_nan_in_one_process_ends_all_with_one_report(together: tuple[Path, list[Ended]]) -> None:
    folder, _ = together
    first, second = ((folder / f"diverged-{rank}").read_text(encoding="utf-8") for rank in (0, 1))
    assert first == second
    assert first.startswith("update 2: the loss is nan")
    failed = folder / "diverged" / "checkpoints" / "failed-update-2"
    assert str(failed) in first
    report = json.loads((failed / "failed.json").read_text(encoding="utf-8"))
    assert [batch["is_finite"] for batch in report["batches"]] == [False, True]
    assert "random-1/cpu" in load_file(failed / "state.safetensors")


def test_a_process_that_fails_ends_the_others_with_an_error(together: tuple[Path, list[Ended]]) -> None:
    folder, ((code, said), (failed_code, failed_said)) = together
    assert code != 0
    assert failed_code != 0
    assert "MemoryError: out of memory, says a test" in failed_said
    assert "TrainingError: the other processes of this run cannot be reached" in said
    assert (folder / "failed" / "recipe.yaml").exists()
    assert not (folder / "failed" / "results.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_a_process_that_leaves_the_others_has_no_threads_for_them(tmp_path: Path) -> None:
    ended = launched.launch(WORKER.with_name("leaving_worker.py"), str(tmp_path))
    assert [code for code, _ in ended] == [0, 0], ended
    for rank in (0, 1):
        before, after = json.loads((tmp_path / f"threads-{rank}.json").read_text(encoding="utf-8"))
        assert any("gloo" in name for name in before)
        assert not [name for name in after if "gloo" in name]


def test_no_process_goes_on_before_the_first_one_has_saved(together: tuple[Path, list[Ended]]) -> None:
    n_looked, missing = json.loads((together[0] / "not-saved.json").read_text())
    assert (n_looked, missing) == (1, [])
