"""Study of what a loop does within and beyond the rounds it was trained for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ostinato.analysis.capture import CapturedBatch, Collector, batches, stream
from ostinato.analysis.drawing import common_legend, finish, line, panels, whole_numbers
from ostinato.analysis.round_map import N_PRODUCTS, RoundSums, spectral_radius
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject
from ostinato.analysis.studies.trade_offs import variable_stacks
from ostinato.data.example import Example, take_evenly
from ostinato.evaluation.scores import score_sentences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMES = 4
"""As many rounds as the plan has are run."""
EXAMPLES = 64
_MOST_RADII = 12
_LOGARITHMIC = 100
"""Largest over smallest value from which a scale is logarithmic."""


@dataclass(slots=True)
class AfterRound:
    """What is found after a 1-based round.

    Args:
        norm, change, cosine: see `ostinato.analysis.round_map`. loss: in nats a label if the round were the last; None
            of a stack that the output is not read from. radius: None where it is not measured.
    """

    round: int
    norm: float
    change: float | None
    cosine: float
    loss: float | None = None
    radius: float | None = None


class RoundTotals(Collector):
    """Sums of one stack after every round of its loop, and of the losses if it were the last.

    Args:
        reads: whether the model's output is read from the stack.
    """

    request = frozenset({"rounds"})

    def __init__(self, stack: str, *, reads: bool) -> None:
        self._stack, self._reads = stack, reads
        self.sums: list[RoundSums] = []
        self.nll: list[float] = []
        self.n_labels = 0

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        batch, found = captured.batch, captured.output.stacks[self._stack]
        self.sums = self.sums or [RoundSums() for _ in found.left]
        self.nll = self.nll or [0.0] * len(found.left)
        before = [None, *found.left[:-1]]
        for sums, left_BTD, before_BTD in zip(self.sums, found.left, before, strict=True):
            sums.add(left_BTD, before_BTD, captured.keep(self._stack))
        if not self._reads:
            return
        for index, states in enumerate(found.rounds):
            logits_BLV = captured.model.read(states(), batch)
            scores = score_sentences(logits_BLV, batch.labels_BT, batch.loss_mask_BT)
            self.nll[index] += sum(one.nll for one in scores)
        self.n_labels += sum(one.n_labels for one in scores)

    def means(self) -> list[AfterRound]:
        """Return what was found after every round."""
        found = []
        for number, (sums, nll) in enumerate(zip(self.sums, self.nll, strict=True), 1):
            norm, change, cosine = sums.means()
            loss = nll / max(self.n_labels, 1) if self._reads else None
            found.append(AfterRound(number, norm, change if number > 1 else None, cosine, loss))
        return found


_COLUMNS = ("stack", "round", "trained for", "norm", "change", "cosine", "loss, nats", "spectral radius")


def _rounds(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return norms, changes, collapse, losses and radii of every loop by round."""
    trained = {name: subject.model.stacks[name].plan.n_rounds for name in _loops(subject.model)}
    found = {name: _of_stack(subject, name, n, on_progress) for name, n in trained.items()}
    rows: list[list[object]] = [
        [name, one.round, trained[name], one.norm, one.change, one.cosine, one.loss, one.radius]
        for name, points in found.items()
        for one in points
    ]
    data = {
        name: {"trained_rounds": trained[name], "by_round": [asdict(one) for one in points]}
        for name, points in found.items()
    }
    note = (
        f"{len(_few(subject)):,} examples of {subject.split}, teacher-forced, up to {TIMES} times the plan's rounds, "
        f"one stack at a time; no token halts. Spectral radius: {N_PRODUCTS} products on all tokens of one example. "
        f"{subject.which()}."
    )
    return Finding(_COLUMNS, rows, {"stacks": data}, lambda narrow: _draw(found, trained, narrow), note=note)


def _loops(model: Any) -> list[str]:
    """Return the stacks whose rounds can be another number than the plan's: routers know no more than they have."""
    return [name for name in variable_stacks(model) if not model.stacks[name].halting.chooses_tokens]


def _no_loop(model: object) -> str | None:
    reason = "no stack of its model has several rounds that share all weights and are as many as a call asks for"
    return None if _loops(model) else reason


ROUNDS = Study(
    name="rounds",
    title="States by round, within and beyond the trained depth",
    reading=(
        "Up to four times the rounds of the plan (dashed line): a loop that settles has states of constant norm, a "
        "change that falls and a spectral radius below 1; one that diverges has growing norms and a radius above 1. A "
        "cosine near 1 says that the tokens of a sentence have become the same; the loss is what the model would pay "
        "if it stopped after the round."
    ),
    columns=_COLUMNS,
    why_not_model=_no_loop,
    extra_examples=lambda subjects: sum(len(_loops(s.model)) * len(_few(s)) for s in subjects),
    of_run=_rounds,
)


def _few(subject: Subject) -> list[Example]:
    return list(take_evenly(subject.examples, EXAMPLES))


def _of_stack(subject: Subject, name: str, n_trained: int, on_progress: OnProgress) -> list[AfterRound]:
    model, n_rounds = subject.model, TIMES * n_trained
    totals = RoundTotals(name, reads=name == list(model.stacks)[-1])
    criterion: dict[str, Any] = {"exit": None, "exit_scope": "token", "halting_threshold": None}
    with model.execution(halting=False, rounds={name: n_rounds}, **criterion):
        stream(subject.run, _few(subject), [totals], on_progress=on_progress)
        found = totals.means()
        for number, radius in _radii(subject, name, rounds_of_radii(n_trained)).items():
            found[number - 1].radius = radius
    return found


def rounds_of_radii(n_trained: int) -> list[int]:
    """Return the rounds at which the radius is measured: all from 2 on, or a dozen with the trained number."""
    n_rounds = TIMES * n_trained
    if n_rounds - 1 <= _MOST_RADII:
        return list(range(2, n_rounds + 1))
    spread = {2 + i * (n_rounds - 2) // (_MOST_RADII - 1) for i in range(_MOST_RADII)}
    return sorted(spread | {n_trained})


def _radii(subject: Subject, name: str, numbers: Sequence[int]) -> dict[int, float]:
    """Return the spectral radius of rounds at the states that enter them, of one example."""
    model, modes = subject.model, {module: module.training for module in subject.model.modules()}
    (batch,) = batches(subject.run, [subject.examples[subject.shown()]])
    model.eval()
    try:
        with torch.no_grad():
            output = model(batch.to(model.device), request={"rounds"}).stacks[name]
        advance = output.advance
        assert advance is not None  # it was requested
        # A round starts from what left the one before.
        return {number: spectral_radius(partial(advance, number - 1), output.left[number - 2]) for number in numbers}
    finally:
        for module, mode in modes.items():
            module.training = mode


def _draw(found: dict[str, list[AfterRound]], trained: dict[str, int], narrow: bool) -> Figure:
    names = (
        ("norm", "mean norm of the states"),
        ("change", "relative change"),
        ("cosine", "mean cosine between tokens"),
        ("radius", "spectral radius of a round"),
        ("loss", "loss, nats a label"),
    )
    figure, axes = panels(len(names), narrow, height=2.6)
    for panel, (field, label) in zip(axes, names, strict=True):
        drawn: list[float] = []
        for i, (stack, points) in enumerate(found.items()):
            known = [(one.round, value) for one in points if (value := getattr(one, field)) is not None]
            if known:
                line(panel, i, [at for at, _ in known], [value for _, value in known], stack)
                drawn += [value for _, value in known if math.isfinite(value)]
        for n in sorted(set(trained.values())):
            panel.axvline(n, color="gray", linestyle="--", linewidth=1, label="trained for")
        if drawn and max(drawn) > _LOGARITHMIC * min(drawn) > 0:
            panel.set_yscale("log")
        whole_numbers(panel)
        finish(panel, "round", label)
    common_legend(figure, axes)
    return figure
