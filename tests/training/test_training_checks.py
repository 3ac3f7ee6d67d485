"""Settings that only the model and the machine can judge, and experts under precision, recomputation and backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tiny_runs import records, tiny_recipe, weights
from torch.torch_version import TorchVersion

from ostinato.config.training import ExpertBackend
from ostinato.errors import CheckpointError, ConfigError, Problem
from ostinato.evaluation.loading import load
from ostinato.kernels import Backend
from ostinato.nn.experts import Decision, ExpertFeedForward, ExpertMaps
from ostinato.nn.routing import Router
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.training.checks import check_training


def test_the_backends_a_recipe_may_name_are_those_there_are() -> None:
    assert get_args(ExpertBackend) == ("auto", *get_args(Backend))


def test_a_backend_that_does_not_work_here_is_an_error_before_any_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ExpertFeedForward, x_BTD: torch.Tensor, decision: Decision, *args: object) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu"):
            raise ConfigError([Problem("backend", decision.backend, "does not work on cpu with torch.bfloat16: no")])
        return x_BTD

    monkeypatch.setattr(ExpertFeedForward, "forward", fail)
    recipe = tiny_recipe(tmp_path, experts=True, expert_backend="padded", precision="bfloat16")
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    with pytest.raises(ConfigError) as error:
        train(recipe, tmp_path / "run")
    [line] = str(error.value).splitlines()
    assert line.startswith("training.expert_backend is 'padded': does not work on cpu with torch.bfloat16")
    assert not (tmp_path / "run").exists()
    both = recipe.training.model_copy(update={"freeze": ["*.routers.*"]})
    with pytest.raises(ConfigError) as error:
        check_training(recipe.model_copy(update={"training": both}), torch.device("cpu"))
    assert len(error.value.problems) == 2
    check_training(tiny_recipe(tmp_path, expert_backend="padded", precision="bfloat16"), torch.device("cpu"))


def test_models_with_experts_are_compiled_in_bfloat16_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"set training\.precision=bfloat16") as error:
        train(tiny_recipe(tmp_path, compile=True, experts=True), tmp_path / "run")
    assert error.value.problems[0].key == "training.compile"
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(torch, "compile", lambda run, **how: run)
    lowered = load_recipe("looped/moeut-toy", ["training.compile=true", "training.precision=bfloat16"])
    check_training(lowered, torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "settings", "key", "message"),
    [
        (
            "looped/moeut-44m",
            (),
            "training.compile",
            "widths are multiples of 8 only, and this model has some of 82, 412",
        ),
        ("looped/moeut-toy", ("training.expert_backend=padded",), "training.expert_backend", "auto or grouped"),
        ("dense/llama-toy", ("training.compaction=always",), "training.compaction", "auto or never"),
    ],
)
def test_what_no_pass_can_be_compiled_with_is_an_error_before_any_data_is_read(
    name: str, settings: tuple[str, ...], key: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda run, **how: run)
    recipe = load_recipe(name, ["training.compile=true", "training.precision=bfloat16", *settings])
    with pytest.raises(ConfigError, match=message) as error:
        check_training(recipe, torch.device("cpu"))
    assert [problem.key for problem in error.value.problems] == [key]


def test_rounds_with_maps_of_their_own_are_compiled_by_torch_2_12_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda run, **how: run)
    recipe = load_recipe("looped/relaxed-recursive-toy", ["training.compile=true"])
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.12.0"))
    check_training(recipe, torch.device("cpu"))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0+cu130"))
    with pytest.raises(ConfigError, match="delta_rank") as error:
        check_training(recipe, torch.device("cpu"))
    assert [problem.key for problem in error.value.problems] == ["training.compile"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("ddp", {"halting": True}, "it depends on the tokens of this model how many rounds are run"),
        ("ddp", {"consistency": {"loss": 0.1}}, "the rounds of an update are drawn"),
        ("ddp", {"round_loss": {"kind": "drawn"}}, "the rounds of an update are drawn"),
        ("fsdp", {"compile": True}, r"passes that are compiled \(training.compile\) know no hooks: must be none"),
    ],
)
def test_what_processes_cannot_hold_as_asked_for_is_an_error(
    tmp_path: Path, kind: str, changes: dict[str, Any], reason: str
) -> None:
    recipe = tiny_recipe(tmp_path, parallel={"kind": kind}, **changes)
    with pytest.raises(ConfigError, match=reason) as error:
        check_training(recipe, torch.device("cpu"))
    assert (problem := next(p for p in error.value.problems if "parallel" in p.key)).value == kind
    assert problem.key == "training.parallel.kind"
    check_training(tiny_recipe(tmp_path, experts=True, parallel={"kind": kind}), torch.device("cpu"))


def test_a_score_of_texts_alone_selects_nothing_else() -> None:
    wrong = ["training.selection.metric=bits_per_byte", "training.selection.mode=min"]
    with pytest.raises(ConfigError, match="bits_per_byte': is of texts every token of which is a label"):
        load_recipe("algorithmic/reverse-universal", wrong)
    assert load_recipe("lm/transformer", wrong).training.selection.metric == "bits_per_byte"


def test_a_search_that_cannot_be_recorded_is_an_error_before_any_data_is_read(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data", halting=True)
    recorded = recipe.model_copy(update={"decoding": recipe.decoding.model_copy(update={"static_cache": True})})
    with pytest.raises(ConfigError, match=r"decoding\.static_cache is True: tokens of the decoder may halt"):
        train(recorded, tmp_path / "run")
    assert not (tmp_path / "run" / "data.json").exists()


def test_a_compiler_that_does_not_work_is_an_error_before_any_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no g++\nfurther lines")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(ConfigError, match="does not work on cpu here: RuntimeError: no g"):
        train(tiny_recipe(tmp_path, compile=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_passes_are_compiled_and_evaluations_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []

    def compile_(run: Any, **how: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            compiled.append(torch.is_grad_enabled())
            return run(*given, **named)

        return counted

    train(tiny_recipe(tmp_path, n_updates=3, evaluate_every=1), tmp_path / "plain")
    monkeypatch.setattr(torch, "compile", compile_)
    recipe = tiny_recipe(tmp_path, n_updates=3, evaluate_every=1, compile=True)
    train(recipe, tmp_path / "run")
    _, *updates = compiled  # the first is the trial
    assert updates == [True] * 3 * recipe.training.accumulate
    assert [row["loss"] for row in records(tmp_path / "run", "training")] == [
        row["loss"] for row in records(tmp_path / "plain", "training")
    ]


def test_a_forced_backend_trains_and_may_change_on_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[tuple[bool, str]] = set()
    original = ExpertFeedForward.forward

    def noted(self: ExpertFeedForward, x_ND: torch.Tensor, decision: Decision, *args: Any) -> torch.Tensor:
        used.add((torch.is_grad_enabled(), decision.backend))
        return original(self, x_ND, decision, *args)

    monkeypatch.setattr(ExpertFeedForward, "forward", noted)
    recipe = tiny_recipe(tmp_path, experts=True, expert_backend="loop", n_updates=2, log_every=1)
    train(recipe, tmp_path / "loop")
    assert used == {(True, "loop"), (False, "loop")}
    monkeypatch.undo()
    train(tiny_recipe(tmp_path, experts=True, n_updates=2, log_every=1), tmp_path / "auto")
    losses = [[record["loss"] for record in records(tmp_path / name, "training")] for name in ("loop", "auto")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    other = recipe.training.model_copy(update={"expert_backend": "segments"})
    assert train(recipe.model_copy(update={"training": other}), tmp_path / "loop", resume=True)["n_updates"] == 2
    larger = recipe.training.model_copy(update={"accumulate": 3})
    with pytest.raises(CheckpointError, match=r"training\.accumulate"):
        train(recipe.model_copy(update={"training": larger}), tmp_path / "loop", resume=True)


@pytest.mark.slow
def test_recomputed_steps_route_as_they_did_and_give_the_same_weights(tmp_path: Path) -> None:
    for name, recomputes in (("kept", False), ("recomputed", True)):
        recipe = tiny_recipe(tmp_path, experts=True, n_updates=4, checkpoint_activations=recomputes)
        train(recipe, tmp_path / name)
    assert weights(tmp_path / "kept") == weights(tmp_path / "recomputed")
    assert records(tmp_path / "kept", "training") == records(tmp_path / "recomputed", "training")


def test_bfloat16_trains_experts_with_float32_weights_and_routers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny_recipe(tmp_path, experts=True, n_updates=4), tmp_path / "full")
    seen: dict[str, set[torch.dtype]] = {"products": set(), "scores": set()}
    original, forward = ExpertMaps.forward, Router.forward

    def product(self: ExpertMaps, *args: Any, **named: Any) -> torch.Tensor:
        y = original(self, *args, **named)
        if torch.is_grad_enabled():
            seen["products"].add(y.dtype)
        return y

    def scores(self: Router, h_ND: torch.Tensor, *rest: Any) -> torch.Tensor:
        found = forward(self, h_ND, *rest)
        seen["scores"].add(found.dtype)
        return found

    monkeypatch.setattr(ExpertMaps, "forward", product)
    monkeypatch.setattr(Router, "forward", scores)
    train(tiny_recipe(tmp_path, experts=True, n_updates=4, precision="bfloat16"), tmp_path / "low")
    assert seen == {"products": {torch.bfloat16}, "scores": {torch.float32}}
    low, full = (records(tmp_path / name, "training")[-1] for name in ("low", "full"))
    assert low["nll"] != full["nll"]
    assert low["nll"] == pytest.approx(full["nll"], rel=0.02)
    assert all(p.dtype == torch.float32 for p in load(tmp_path / "low").model.parameters())
