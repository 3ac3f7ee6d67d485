"""A sub-layer of a plan: what every one of them has around its function f.

    states = after(states + dropout(g * output(f(before(states) * (1 + s)))))

A gate g and a scale s are there where the plan names a modulation (`ostinato.nn.by_round`). before, output and after
are norms, of which the plan names some; queries, keys, gates and routers may read one more:

    post       after              Universal Transformers, section 2.1
    pre        before             T5, GPT-2
    peri       before, output     Ouro
    output     output             OLMo 2
    sandwich   before, after      Huginn
    parallel   before             GPT-NeoX: all sub-layers of a step read what entered it, see `Parallel`
    scores     scores             MoEUT: scores are made of scores(states), values and what experts read of the states

f is a subclass's: self-attention, cross-attention, feed-forward (dense or of experts), separable convolution.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ostinato.kernels import active_sums, add_dropped, summing, wait_for
from ostinato.nn.bank import Banks
from ostinato.nn.context import Pass, Round
from ostinato.nn.experts import Decision, Routed
from ostinato.nn.layers import at_least_float32
from ostinato.nn.shapes import Float, Tensor
from ostinato.plan import Step, Use

GateAndScale = tuple[Tensor, Tensor]
"""g and s, `[D]` each."""


@runtime_checkable
class Runnable(Protocol):
    """A sub-layer, or what stands for several that follow each other."""

    def __call__(self, states_ND: Tensor, run: Pass, here: Round) -> Tensor:
        """See `SubLayer`."""
        ...

    def prepare(self, run: Pass) -> None:
        """See `SubLayer`."""
        ...

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """See `SubLayer`."""
        ...


class RunnableBeside(Runnable, Protocol):
    """A sub-layer that may run beside others, or what surrounds one."""

    def __call__(self, states_ND: Tensor, run: Pass, here: Round, sum_ND: Tensor | None = None) -> Tensor:
        """See `SubLayer`."""
        ...


class SubLayer(ABC):
    """One use of a parameter set at one step, made once. It refers to its modules and owns no parameters.

    Args:
        stack: name of the stack. step, use: its place in the plan. banks: where the use finds its weights and its norm.
        dropout: of the output of f.
    """

    def __init__(
        self,
        stack: str,
        step: Step,
        use: Use,
        banks: Banks,
        *,
        dropout: float,
    ) -> None:
        self.stack, self.step, self.use, self.dropout = stack, step.index, use, dropout
        self._banks, self._bank = banks, getattr(banks, use.kind)

    @property
    def module(self) -> Any:
        """The parameter set, as it stands in its bank: one that was replaced is used. What the use adds is added."""
        found = self._bank[self.use.weights]
        return found if self.use.delta is None else self._banks.delta[self.use.delta].added_to(found)  # type: ignore[operator]

    def norm(self, name: str | None) -> nn.Module | None:
        """Return a norm by its name, as it stands in its bank."""
        return None if name is None else self._banks.norm[name]

    def modulation(self, here: Round) -> GateAndScale | None:
        """Return the gate and the scale of a round; None where the use has none."""
        name = self.use.modulation
        return None if name is None else self._banks.modulation[name].of_time(here.time_D)  # type: ignore[operator]

    def prepared(self, states_ND: Float[Tensor, "N D"], modulation: GateAndScale | None) -> Float[Tensor, "N D"]:
        """Return states as f reads them: normed and scaled."""
        if self.use.before is not None:
            states_ND = self._banks.norm[self.use.before](states_ND)
        return states_ND if modulation is None else states_ND * (1 + modulation[1])

    def __call__(
        self, states_ND: Float[Tensor, "N D"], run: Pass, here: Round, sum_ND: Float[Tensor, "N D"] | None = None
    ) -> Float[Tensor, "N D"]:
        """Return the states after the sub-layer.

        Args:
            sum_ND: what the output is added to; None: the states.
        """
        started = _seconds(states_ND.device) if "seconds" in run.request else 0.0
        module, use, norms = self.module, self.use, self._banks.norm
        modulation = self.modulation(here)
        read_ND = self.prepared(self.reads(states_ND, here), modulation)
        scored_ND = read_ND if use.scores is None else norms[use.scores](read_ND)
        decision = self.route(module, scored_ND, run, here) if isinstance(module, Routed) else None
        output_ND = self.transform(module, read_ND, scored_ND, decision, states_ND, run, here)
        if use.output is not None:
            output_ND = norms[use.output](at_least_float32(output_ND))  # states are, under autocast, too
        if modulation is not None:
            output_ND = at_least_float32(output_ND) * modulation[0]
        onto_ND = states_ND if sum_ND is None else sum_ND
        if self.dropout and self._banks.training:
            moved_ND = add_dropped(onto_ND, output_ND, self.dropout, run.execution.dropout_draws)
        else:
            moved_ND = onto_ND + output_ND
        if use.after is not None:
            moved_ND = norms[use.after](moved_ND)
        if run.request:
            for what, value_ND in (("input", scored_ND), ("output", output_ND), ("residual", moved_ND)):
                if what in run.request:
                    run.captures[self.stack, self.step, self.use.kind, what] = here.rows.grid(value_ND)
            if "seconds" in run.request:
                took = torch.tensor(_seconds(states_ND.device) - started)
                run.captures[self.stack, self.step, self.use.kind, "seconds"] = took
        return moved_ND

    def reads(self, states_ND: Tensor, here: Round) -> Tensor:
        """Return what f reads before any norm: of every row its own state."""
        return states_ND

    @abstractmethod
    def transform(
        self,
        module: Any,
        read_ND: Tensor,
        scored_ND: Tensor,
        decision: Decision | None,
        states_ND: Tensor,
        run: Pass,
        here: Round,
    ) -> Tensor:
        """Return f of what was read and normed.

        Args:
            module: the parameter set. scored_ND: what scores are made of. decision: where every row goes; None where
                there are no experts.
            states_ND: what others' keys are made of.
        """

    def prepare(self, run: Pass) -> None:  # noqa: B027 (most sub-layers have nothing of the kind)
        """Make what a pass computes once for many steps, outside of steps that are run again."""

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:  # noqa: B027 (only self-attention does)
        """Cache the new columns in a round in which no row takes part: later tokens may go deeper, and look back."""

    def route(self, module: Routed, x_ND: Tensor, run: Pass, here: Round) -> Decision:
        """Choose experts for every row, and record what was chosen."""
        backend, draws = run.execution.expert_backend, run.execution.dropout_draws
        decision = module.route(x_ND, here.weight_N, backend=backend, draws=draws)
        routing = decision.routing(router_name(self.use), self.stack, self.step, here.rows)
        if routing is not None:
            run.routings.append(routing)
        return decision


class Parallel:
    """The sub-layers of a step side by side: x + sum over them of f(before(x)), x the states that enter the step.

    (Wang and Komatsuzaki 2021, GPT-J; Black et al. 2022, GPT-NeoX-20B, section 2.1.)
    """

    def __init__(self, sub_layers: Sequence[RunnableBeside]) -> None:
        self.sub_layers = sub_layers

    def __call__(self, states_ND: Float[Tensor, "N D"], run: Pass, here: Round) -> Float[Tensor, "N D"]:
        """Return the states after the step."""
        sum_ND = states_ND
        for sub_layer in self.sub_layers:
            sum_ND = sub_layer(states_ND, run, here, sum_ND)
        return sum_ND

    def prepare(self, run: Pass) -> None:
        """See `SubLayer`."""
        for sub_layer in self.sub_layers:
            sub_layer.prepare(run)

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """See `SubLayer`."""
        for sub_layer in self.sub_layers:
            sub_layer.fill_cache(states_0D, run, here)


def run_steps(steps: Sequence[Sequence[Runnable]], states_ND: Tensor, run: Pass, here: Round) -> Tensor:
    """Return the states after some steps, run one after the other."""
    for step in steps:
        if run.recomputes:
            states_ND = recomputed(step, states_ND, run, here)
            continue
        for sub_layer in step:
            states_ND = sub_layer(states_ND, run, here)
    return states_ND


def recomputed(step: Sequence[Runnable], states_ND: Tensor, run: Pass, here: Round) -> Tensor:
    """Run a step whose inner results are not kept: the backward pass runs it again."""
    for sub_layer in step:
        sub_layer.prepare(run)
    sums = active_sums.get()

    def inside() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # The second run is in another thread: it adds to the gradient sums of its own pass.
        return nullcontext(), nullcontext() if sums is None else summing(sums)

    def run_step(states_ND: Tensor) -> Tensor:
        for sub_layer in step:
            states_ND = sub_layer(states_ND, run, here)
        return states_ND

    return checkpoint(run_step, states_ND, use_reentrant=False, context_fn=inside)  # type: ignore[no-any-return]


def capture_weights(sub_layer: SubLayer, weights_BHQS: Tensor, run: Pass, here: Round) -> None:
    """Put attention weights by column, `[B, H, T C, S]`, into `run.captures`; zeros for columns without a query.

    Args:
        weights_BHQS: of the rows that are queries, the C choices of a token side by side.
    """
    rows = here.rows
    weights_BHACS = weights_BHQS.view(*weights_BHQS.shape[:2], rows.n_queries, -1, weights_BHQS.shape[3])
    weights_BTHCS = rows.grid(rows.from_queries(weights_BHACS.transpose(1, 2)))
    key = sub_layer.stack, sub_layer.step, sub_layer.use.kind, "weights"
    run.captures[key] = weights_BTHCS.transpose(1, 2).flatten(2, 3)


def router_name(use: Use, which: str = "") -> str:
    """Return the name of a router of a sub-layer with experts: steps that share the sub-layer share it.

    Args:
        which: of several, see `NamedRouter`.
    """
    return f"{use.kind}.{use.weights}" + (f".{which}" if which else "")


def _seconds(device: torch.device) -> float:
    """Return seconds of a clock that only goes forward, once the device has done its work."""
    wait_for(device)
    return time.perf_counter()
