"""The demonstration: the sweep `parity` with one seed, beside the committed rows of three, and one figure of both.

First half: how far beyond its training lengths every arm is right, the repeated block also with as many rounds as the
input has bits, and with as many as every token or every sequence takes until it stops by itself. Second half, on
sequences of mixed lengths: what stopping by itself costs in multiply-accumulates and in seconds, beside always the same
number of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, Literal

from ostinato.analysis.drawing import COLOURS, common_legend, finish, new_figure, save_figure
from ostinato.config.files import shipped_directory
from ostinato.config.measures import EvaluateMeasure
from ostinato.config.sweep import SweepConfig
from ostinato.data.batching import evaluation_batches
from ostinato.data.lines import read_lines
from ostinato.data.rows import encode_rows
from ostinato.data.sources import parse_object
from ostinato.decoding.search import inference
from ostinato.evaluation.loading import load
from ostinato.evaluation.timing import Effort, Stopwatch, interleave
from ostinato.tasks.registry import build_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ostinato.data.batch import Batch
    from ostinato.experiments.sweep.summary import Row
    from ostinato.models.build import Model

SWEEP, SEED = "parity", 1
LOOPED, FIXED = "looped", "fixed rounds"
_MIXED, _MACS = "mixed, ", ", MACs"
_OWN, _OF_TOKENS = "own rounds", "own rounds of tokens"
_EFFORT = Effort(rounds=3, least=2, seconds=40.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the demonstration: an arm with a rule for its rounds.

    Args:
        arm: of the sweep. rule: in words. measure: of the rows, for a length in bits.
    """

    arm: str
    rule: str
    measure: Callable[[int], str]

    @property
    def name(self) -> str:
        """Arm and rule, for people."""
        return f"{self.arm}, {self.rule}" if self.rule else self.arm


def _as_trained(bits: int) -> str:
    return f"bits.{bits}"


def _as_many_as_bits(bits: int) -> str:
    # The plan of both repeated blocks has 12 rounds.
    return _as_trained(12) if bits == 12 else f"{bits} rounds.{bits}"


LINES = (
    Line(LOOPED, "a round a bit", _as_many_as_bits),
    Line(LOOPED, "sequences stop by themselves", f"{_OWN}.{{}}".format),
    Line(LOOPED, "tokens stop by themselves", f"{_OF_TOKENS}.{{}}".format),
    Line(LOOPED, "12 rounds", _as_trained),
    Line(FIXED, "a round a bit", _as_many_as_bits),
    Line(FIXED, "12 rounds", _as_trained),
    Line("Transformer, equal parameters", "", _as_trained),
    Line("Transformer, equal MACs", "those of 12 rounds", _as_trained),
)


def committed_rows() -> list[dict[str, Any]]:
    """Return the rows of all seeds that are shipped with the library; empty where there are none."""
    path = shipped_directory("sweeps") / f"{SWEEP}.jsonl"
    return [parse_object(line, path, number) for number, line in read_lines(path)] if path.is_file() else []


def lengths(rows: Sequence[Row]) -> list[int]:
    """Return the lengths in bits that the rows have results of."""
    return [int(name.removeprefix("bits.")) for name in rows[0]["values"] if name.startswith("bits.")]


def values(rows: Sequence[Row], line: Line, bits: int) -> list[float]:
    """Return the share of the sequences of a length with all tags right, by seed."""
    return [row["values"][line.measure(bits)] for row in rows if row["arm"] == line.arm]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a rule for the rounds costs on sequences of mixed lengths.

    Args:
        rule: `N rounds`, `own rounds THRESHOLD` or `own rounds of tokens THRESHOLD`.
        accuracy: share with all tags right.
        macs: of a sequence, mean.
        seconds: of a sequence, median of a few passes in turns.
    """

    rule: str
    accuracy: float
    macs: float
    seconds: float

    @property
    def stops(self) -> Literal["none", "token", "sequence"]:
        """What stops by itself."""
        if self.rule.startswith(_OF_TOKENS):
            return "token"
        return "sequence" if self.rule.startswith(_OWN) else "none"

    @property
    def threshold(self) -> str:
        """The threshold of what stops by itself; the number of rounds, where nothing does."""
        return self.rule.removesuffix(" rounds").rpartition(" ")[2]


def costs(sweep: SweepConfig, row: Row, run: Path) -> list[Cost]:
    """Return accuracy and cost of every rule, timed on a finished run, the rules taking turns.

    Args:
        row: of the run, with what the sweep measured.
    """
    rules = {
        measure.name.removeprefix(_MIXED): measure
        for measure in sweep.measures_of(row["arm"])
        if isinstance(measure, EvaluateMeasure) and measure.name.startswith(_MIXED) and not measure.name.endswith(_MACS)
    }
    first = next(iter(rules.values()))
    loaded = load(run, checkpoint="last", overrides=first.overrides(), halting_threshold="trained")
    examples = build_task(loaded.recipe.task, loaded.recipe.data, trains=False).examples(first.split)
    data, model = loaded.recipe.data, loaded.model
    encoded = list(encode_rows(examples, loaded.tokenizers, data, model.config, training=False, name=first.split))
    batches = [batch.to(model.device) for batch in evaluation_batches(encoded, data.eval_tokens_per_batch)]
    passes = {rule: partial(_pass, model, batches, measure) for rule, measure in rules.items()}
    with inference(model):
        laps = interleave(passes, _EFFORT, Stopwatch(model.device))
    return [
        Cost(
            rule,
            row["values"][f"{_MIXED}{rule}"],
            row["values"][f"{_MIXED}{rule}{_MACS}"],
            median(lap.seconds for lap in laps[rule]) / len(encoded),
        )
        for rule in rules
    ]


def _pass(model: Model, batches: Sequence[Batch], measure: EvaluateMeasure) -> None:
    """Run a model over all batches as a measure says."""
    with model.execution(**measure.model_dump(include={"exit", "exit_scope", "halting_threshold"})):
        for batch in batches:
            model(batch, n_steps=measure.n_steps)


def draw(here: Sequence[Row], committed: Sequence[Row], found: Sequence[Cost], path: Path) -> tuple[Path, Path]:
    """Draw both halves; write and return `path`.svg and `path`.png.

    Args:
        here: rows of the seed that ran here. committed: those of all seeds, may be empty.

    Raises:
        ConfigError: matplotlib is not installed, or files that cannot be written.
    """
    figure = new_figure(11.0, 4.2)
    far, by_macs, by_time = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    _draw_lengths(far, here, committed)
    for axes, name, unit in ((by_macs, "macs", 1e6), (by_time, "seconds", 1e-3)):
        _draw_costs(axes, found, [getattr(one, name) / unit for one in found])
    finish(by_macs, "million multiply-accumulates a sequence", "all tags right, %", "Lengths 10 to 24 together: cost")
    finish(by_time, "milliseconds a sequence, on this machine", "", "The same in measured time")
    figure.suptitle(
        "Is the number of ones so far odd? Trained on 1 to 8 bits: a block repeated more often, and Transformers"
    )
    common_legend(figure, [far])
    return save_figure(figure, path, overwrite=True)


def _draw_lengths(axes: Axes, here: Sequence[Row], committed: Sequence[Row]) -> None:
    """Draw every line by length: the seed that ran here as crosses, mean and range of all seeds as a line and bars."""
    at, looks = lengths(here), ("-", "--", "-.", ":")
    for line in LINES:
        arms = list(dict.fromkeys(one.arm for one in LINES))
        colour = COLOURS[arms.index(line.arm)]
        look = looks[[one for one in LINES if one.arm == line.arm].index(line)]
        axes.plot(at, [100 * mean(values(here, line, bits)) for bits in at], "x", color=colour, markersize=5)
        seeds = [[100 * value for value in values(committed or here, line, bits)] for bits in at]
        middle = [mean(of_length) for of_length in seeds]
        reach = [[m - min(s) for m, s in zip(middle, seeds, strict=True)]]
        reach.append([max(s) - m for m, s in zip(middle, seeds, strict=True)])
        axes.errorbar(at, middle, reach, linestyle=look, color=colour, linewidth=1.4, capsize=2, label=line.name)
    axes.set_ylim(-3, 103)
    axes.set_xticks(at)
    n = len({row["seed"] for row in committed})
    beside = f"; lines: mean and range of {n} seeds" if committed else ""
    finish(axes, f"bits of the input (crosses: this run{beside})", "all tags right, %", "Longer than in training")


def _draw_costs(axes: Axes, found: Sequence[Cost], at: Sequence[float]) -> None:
    # Lines and colours as in the other half: see `LINES`.
    for stops, look, colour, name in (
        ("none", "-", "gray", "always as many rounds"),
        ("sequence", "--", COLOURS[0], "every sequence stops by itself"),
        ("token", "-.", COLOURS[0], "every token stops by itself"),
    ):
        points = sorted(
            (x, 100 * one.accuracy, one.threshold) for x, one in zip(at, found, strict=True) if one.stops == stops
        )
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker=".", ls=look, color=colour, label=name)
        for x, y, text in points:
            axes.annotate(text, (x, y), textcoords="offset points", xytext=(3, -9), fontsize=6.5, color=colour)
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def cell(here: Sequence[float], committed: Sequence[float]) -> str:
    """Return one cell of the table in percent: here, and mean ± standard deviation of the committed seeds."""
    text = f"{100 * mean(here):.1f}"
    if len(committed) < 2:
        return text
    return f"{text} ({100 * mean(committed):.1f} ± {100 * stdev(committed):.1f})"
