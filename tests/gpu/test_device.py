"""Whatever a CPU computes, the device computes too: outputs, gradients, searches, every fast path and its plain twin.

`make test-gpu` runs this on CUDA. In the ordinary suite the device is pretended, so that what is chosen for devices
that the host runs ahead of is compared with what is chosen for a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import IS_PRETENDED, NAME, assert_close, device, on_the_device, read, running
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from plans import HALTING, PLANS, model_of, ragged_batch
from safetensors.torch import load_file
from torch import Tensor

from architectures import any_architecture, draws, left_padded, random_model, right_padded, sentences
from ostinato.config.decoding import DecodingConfig
from ostinato.decoding.beams import Hypothesis
from ostinato.decoding.search import inference, search_n_best
from ostinato.kernels import ExpertWeights, choose_backend, dispatch, expert_feed_forward, routed_linear
from ostinato.kernels.feedforward import try_feed_forward
from ostinato.models import Model
from ostinato.tasks.recipes import load_recipe
from ostinato.training import Reporter, train

pytestmark = pytest.mark.gpu


def _weighted(model: Model, batch: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Return logits of real tokens, zeros elsewhere, and the gradients of their weighted sum with costs of depth."""
    output = model(batch)
    logits_BTV = torch.where(batch.target.keep_BT[..., None], output.logits_BTV, 0.0)
    weights_BTV = torch.randn(logits_BTV.shape, generator=torch.Generator().manual_seed(0)).to(logits_BTV.device)
    loss = (logits_BTV * weights_BTV).sum()
    costs = [stack.depth_cost for stack in output.stacks.values() if stack.depth_cost is not None]
    loss = sum(costs, loss)
    return logits_BTV, list(
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    )


@settings(draws(8 if IS_PRETENDED else 120), phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes
@given(st.data())
def test_any_architecture_gives_what_it_gives_on_a_cpu(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    given_sentences = data.draw(sentences(config))
    pad = data.draw(st.sampled_from([right_padded, left_padded]))
    batch = pad(given_sentences, extra=data.draw(st.integers(0, 1)))
    model = random_model(config)  # in float64: random weights make much of a rounding
    logits, gradients = _weighted(model, batch)
    there = on_the_device(model)
    with running():
        found = _weighted(there, batch.to(device))
    assert_close(found[0], logits, "logits")
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for name, one, expected in zip(names, found[1], gradients, strict=True):
        # A parameter that no row reached has no gradient, or zeros.
        if one is None or expected is None:
            assert not any(bool(read(x).any()) for x in (one, expected) if x is not None), name
        else:
            assert_close(one, expected, name)


def _hypotheses(model: Model, batch: Any, settings: dict[str, Any]) -> list[list[Hypothesis]]:
    config = DecodingConfig.model_validate({"max_length": 12, "max_length_ratio": 0.5, "token_scores": True} | settings)
    with inference(model):
        return search_n_best(model, batch, config)


SEARCHES: list[dict[str, Any]] = [{}, {"strategy": "beam", "beam": 3, "n_best": 2}, {"strategy": "sample", "top_k": 4}]
RECORDED = [(name, one | {"static_cache": True}) for name in PLANS if name not in HALTING for one in SEARCHES]
"""As CUDA graphs, where there is CUDA; what steps of fixed sizes do elsewhere is in test_static_cache.py."""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(name, settings, marks=() if (i + j) % 5 == 1 or not IS_PRETENDED else pytest.mark.slow)
        for i, name in enumerate(PLANS)
        for j, settings in enumerate(SEARCHES)
    ]
    + ([] if IS_PRETENDED else RECORDED),
)
def test_a_search_finds_what_it_finds_on_a_cpu(name: str, settings: dict[str, Any]) -> None:
    model, batch = model_of(name).eval(), ragged_batch(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # far from ties
    expected = _hypotheses(model, batch, settings | {"static_cache": False})
    assert len({len(best.ids) for best, *_ in expected}) > 1  # some stop before others
    there = on_the_device(model)
    with running():
        found = _hypotheses(there, batch.to(device), settings)
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.ids for one in ours] == [one.ids for one in theirs]
        assert [one.finished for one in ours] == [one.finished for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, rel=1e-3, abs=1e-3)


class _Maps:
    """A feed-forward of experts on rows some of which have no weight, and hold what must not be read."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        draw = torch.Generator().manual_seed(0)
        N, E, K, D, F = 12, 4, 2, 16, 32
        self.x = torch.randn(N, D, generator=draw)
        self.weight_N = torch.ones(N)
        self.weight_N[[2, 7, 8]] = 0.0
        self.experts = torch.stack([torch.randperm(E, generator=draw)[:K] for _ in range(N)])
        self.experts[self.weight_N > 0] %= 3  # the last expert has no row
        self.gates = torch.rand(N, K, generator=draw)
        shapes = ((E, D, F), (E, F), (E, F, D), (E, D))
        self.weights = [torch.randn(*shape, generator=draw) / shape[-2] ** 0.5 for shape in shapes]
        self.x[2], self.gates[7] = torch.nan, torch.nan
        self.fixed = torch.randn(N, D, generator=draw)
        self.dtype = dtype

    def run(self, where: torch.device, backend: Any) -> list[Tensor]:
        """Return the result and all gradients."""
        leaves = [x.to(where, self.dtype).requires_grad_() for x in (self.x, self.gates, *self.weights)]
        x, gates, *weights = leaves
        to = dispatch(self.experts.to(where), 4, self.weight_N.to(where))
        y = expert_feed_forward(x, ExpertWeights(*weights), gates, to, "silu", backend=backend)
        gradients = torch.autograd.grad((y * self.fixed.to(where, self.dtype)).sum(), leaves)
        # Also a map alone, from rows to the slots of their choices.
        slots = routed_linear(x, weights[0], weights[1], to, reads="rows", writes="slots", backend=backend)
        return [y, *gradients, slots, *torch.autograd.grad(slots.square().sum(), [x, *weights[:2]])]


@pytest.mark.parametrize("backend", ["grouped", "padded", "segments", "loop"])
def test_experts_on_the_device_are_the_plain_loop_on_a_cpu(backend: Any) -> None:
    case = _Maps()
    expected = case.run(torch.device("cpu"), "loop")
    assert all(bool(x.isfinite().all()) for x in expected)
    with running():
        found = case.run(device, backend)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_close(one, other, f"{backend}, tensor {number}")


@pytest.mark.skipif(IS_PRETENDED, reason="which products work is a question to a real device")
def test_the_device_multiplies_experts_by_the_grouped_product_in_bfloat16() -> None:
    chosen = choose_backend("auto", device, torch.bfloat16, try_feed_forward, 64, 128, "relu")
    assert chosen == ("segments" if NAME == "cpu" else "grouped")


@pytest.mark.parametrize("name", ["act", "stick_breaking"])
def test_gathering_halted_tokens_away_changes_nothing_on_the_device(name: str) -> None:
    there = on_the_device(model_of(name).eval())
    with running(), torch.no_grad():
        batch = ragged_batch().to(device)
        whole, gathered = (
            there(batch, execution=replace(there.current_execution, compaction=c)) for c in ("never", "always")
        )
        keep = batch.target.keep_BT[..., None]
        whole_BTV, gathered_BTV = (torch.where(keep, one.logits_BTV, 0.0) for one in (whole, gathered))
    assert_close(gathered_BTV, read(whole_BTV), "logits")


@pytest.mark.skipif(IS_PRETENDED, reason="torch knows no autocast of a device that is none")
@pytest.mark.parametrize("name", PLANS)
def test_bfloat16_stays_near_float32(name: str) -> None:
    # Halting and routing in float32 decide nearly alike; where they do not, a token has another round or expert.
    there, batch = on_the_device(model_of(name).train()), ragged_batch(32).to(device)
    losses = []
    for lowered in (False, True):
        with torch.autocast(device.type, torch.bfloat16, enabled=lowered):
            losses.append(float(there.loss(batch).detach()))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


class _Stopped(Exception):
    pass


class _StopAt(Reporter):
    def on_update(self, record: dict[str, Any]) -> None:
        if record["update"] == 6:
            raise _Stopped


@pytest.mark.skipif(IS_PRETENDED, reason="a run needs a device that torch knows")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_that_goes_on_is_the_undisturbed_one(tmp_path: Path, precision: str) -> None:
    small = ["model.d_model=16", "model.encoder.ffn.d_ff=32", "model.decoder.ffn.d_ff=32", "model.dropout=0.1"]
    every = [f"training.{key}_every={n}" for key, n in (("log", 1), ("save", 4), ("evaluate", 4))]
    length = ["task.n_train=200", "task.n_eval=20", "training.n_updates=8", "training.schedule.warmup=4"]
    where = [f"training.device={NAME}", f"training.precision={precision}"]
    recipe = load_recipe("digits/transformer", [*small, *every, *length, *where])
    train(recipe, tmp_path / "whole")
    with pytest.raises(_Stopped):
        train(recipe, tmp_path / "run", reporter=_StopAt())
    train(recipe, tmp_path / "run", resume=True)
    last = Path("checkpoints") / "update-000008" / "model.safetensors"
    whole, run = (load_file(tmp_path / name / last) for name in ("whole", "run"))
    for name, expected in whole.items():
        assert_close(run[name], expected, name)
