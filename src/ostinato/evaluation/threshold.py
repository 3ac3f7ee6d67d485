"""Score and cost of a trained model by halting threshold, and the choice of a threshold.

A threshold may be changed after training without changing a weight (Sparse Universal Transformer, figures 5-7). Tokens
then halt earlier, which changes their states, so the model is evaluated anew for every threshold:

    score            a metric of decoded outputs, or of teacher forcing where nothing is decoded
    skipped share    1 - token-rounds that ran / (tokens x rounds), of every stack; 0 where halted tokens are computed
                     all the same (`ostinato.budget.depth.ExpectedDepth.skips_halted`)
    realised MACs    `ostinato.budget.macs`: mean over the examples of one teacher-forced pass

The choice is the threshold of the fewest realised MACs whose score is at most `max_drop` below that at the trained
thresholds, in parts of a perfect score: 0.002 is 0.2 points of accuracy in percent, and 0.2 points of BLEU. Where a
perfect score is not above 0, it is a difference of scores.

Thresholds are those of the rules that the model has, or of a criterion that takes their place, which needs no training
(`ostinato.nn.exits`); the first point is the model as it was trained in both cases.

The choice is stored in a file in the run's directory, for one checkpoint, because other weights halt after other
rounds: a run that is loaded at another checkpoint has its trained thresholds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.budget.depth import ExpectedDepth, expected_depths
from ostinato.config.recipe import Recipe
from ostinato.data.disk import write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import CheckpointError, ConfigError
from ostinato.metrics.base import unit_of
from ostinato.models import Model
from ostinato.nn.execution import Execution, ExitScope
from ostinato.tasks.registry import build_task, task_config

if TYPE_CHECKING:
    from ostinato.evaluation.loading import LoadedRun

FORCED = ("token_accuracy", "sequence_accuracy_forced")
"""Scores of teacher forcing that grow as a model gets better."""
FILE, CURVE = "halting-threshold.json", "threshold-curve"
FORMAT = 2
"""Of both files; those of format 1 know no criteria, and are read."""
_FORMATS = (1, FORMAT)
_LATER = ("oracle", "oracle_metric", "weights", "files")
"""Fields that files of format 2 may lack."""
_ROUNDING = 1e-9
_T = TypeVar("_T")

TRAINED = "trained"
"""Stands for every stack's own threshold, as its configuration says."""


@dataclass(frozen=True, slots=True)
class TunedThreshold:
    """A chosen threshold, and how it was chosen.

    Args:
        threshold: of all stacks in which tokens halt; None: their trained ones.
        exit, exit_scope: the criterion whose threshold it is, see `ostinato.nn.Execution`; None: the model's own rules.
        checkpoint: its name. weights: their SHA-256; None in files of earlier versions.
        split, metric, max_drop: the metric of the split fell by at most max_drop.
    """

    threshold: float | None
    checkpoint: str
    split: str
    metric: str
    max_drop: float
    exit: str | None = None
    exit_scope: str = "token"
    weights: str | None = None

    @property
    def execution(self) -> dict[str, Any]:
        """The choice as fields of an `Execution`; empty where the trained thresholds are the choice."""
        if self.threshold is None:
            return {}
        return {"halting_threshold": self.threshold, "exit": self.exit, "exit_scope": self.exit_scope}


def write_tuned(directory: Path, tuned: TunedThreshold) -> Path:
    """Store a chosen threshold with a run, in place of an earlier one; return the file."""
    path = directory / FILE
    write_json(path, {"format": FORMAT} | asdict(tuned))
    return path


def tuning_metric(recipe: Recipe, access: DataAccess | None = None) -> str:
    """Return the metric that a threshold is chosen by where none is named: the recipe's first, or token accuracy."""
    own = recipe.evaluation.metrics
    if own is None:
        own = list(build_task(recipe.task, recipe.data, access, trains=False).metrics)
    return own[0] if own and task_config(recipe.task).has_sources else FORCED[0]


def read_tuned(directory: Path) -> TunedThreshold | None:
    """Return a run's chosen threshold, None where there is none.

    Raises:
        CheckpointError: it cannot be read.
    """

    def tuned(content: dict[str, Any]) -> TunedThreshold:
        found = TunedThreshold(**_known(TunedThreshold, content))
        if found.threshold is not None and not 0.0 <= found.threshold <= 1.0:
            raise ValueError(f"threshold {found.threshold!r} does not lie in [0, 1]")
        Execution(**found.execution)
        return found

    return _read(directory / FILE, tuned, "choose again")


def _known(kind: type[Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says of the fields of a kind; those that have come later may be missing."""
    later = _LATER if content["format"] == FORMAT else (*_LATER, "exit", "exit_scope")
    return {one.name: content[one.name] for one in fields(kind) if one.name in content or one.name not in later}


def _read(path: Path, build: Callable[[dict[str, Any]], _T], again: str) -> _T | None:
    """Return what is built from a JSON file's content, None where there is no file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] not in _FORMATS:
            known = " or ".join(map(str, _FORMATS))
            raise CheckpointError(f"{path}: format {content['format']!r} is not {known}, which this version reads")
        return build(content)
    except (OSError, RecursionError, ValueError, KeyError, TypeError, ConfigError) as error:
        advice = f"remove it, or {again} with ostinato tune-threshold"
        raise CheckpointError(f"{path}: cannot be read: {error!r}; {advice}") from error


def threshold_origin(model: Model, tuned: TunedThreshold | None) -> str:
    """Say where the thresholds in force come from: trained, tuned, or given (by an option, or by a program)."""
    present, execution, trained = model.halting_thresholds(), model.current_execution, model.trained_thresholds()
    # Up to rounding: ACT stores 1 - threshold.
    if execution.exit is None and all(math.isclose(present[name], trained[name], abs_tol=1e-12) for name in present):
        return TRAINED
    if tuned is not None and tuned.execution:
        return "tuned" if execution == replace(execution, **tuned.execution) else "given"
    return "given"


@dataclass(frozen=True, slots=True)
class Point:
    """Score and cost of a model at one threshold.

    Args:
        threshold: None: the trained ones. thresholds: in force, by stack.
        score: as the metric reports it. skipped: share of the token-rounds, by stack. macs: full and realised.
        seconds: of the whole evaluation. decoding_seconds: of decoding alone, where there was any.
    """

    threshold: float | None
    thresholds: dict[str, float]
    score: float
    skipped: dict[str, float]
    macs: dict[str, float]
    seconds: float
    decoding_seconds: float | None


@dataclass(frozen=True, slots=True)
class Tuning:
    """A sweep over thresholds and the chosen one.

    Args:
        perfect: the metric's score of perfect outputs. n: examples. points: the trained thresholds first.
        chosen: of the points. files: written into the run's directory.
        exit, exit_scope: the criterion whose thresholds were measured; None: the model's own rules.
        oracle: of the fewest rounds in which labels are right (`ostinato.evaluation.oracle`), with the skipped share of
            the stack that it is of, too; None: the model has no such rounds. oracle_metric: what its score is.
        weights: SHA-256 of the checkpoint's; None in files of earlier versions.
    """

    checkpoint: str
    split: str
    metric: str
    perfect: float
    max_drop: float
    n: int
    points: tuple[Point, ...]
    chosen: Point
    files: tuple[Path, ...] = ()
    exit: str | None = None
    exit_scope: str = "token"
    oracle: Point | None = None
    oracle_metric: str | None = None
    weights: str | None = None

    @property
    def trained(self) -> Point:
        """The point of the trained thresholds, with which the others are compared."""
        return self.points[0]

    @property
    def heading(self) -> str:
        """What tables and axes call the thresholds: those of a criterion are of another number than the model's."""
        return "threshold" if self.exit is None else f"threshold of {self.exit} ({self.exit_scope})"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        plain = {key: value for key, value in asdict(self).items() if key != "files"}
        return {"format": FORMAT} | plain


def sweep(
    model: Model,
    metric: str,
    thresholds: Sequence[float],
    evaluate: Callable[[], dict[str, Any]],
    on_point: Callable[[Point], None] = lambda point: None,
    exit: str | None = None,
    exit_scope: ExitScope = "token",
) -> tuple[list[Point], int]:
    """Return the points of a model at its trained thresholds and at others, and the number of examples.

    Args:
        metric: of the result. thresholds: each for all stacks in which tokens halt.
        evaluate: measures the model as it is (`ostinato.evaluation.evaluate`). on_point: called with each point.
        exit, exit_scope: the criterion whose thresholds they are; None: the model's own rules.

    Raises:
        ConfigError: no token of the model can stop by the criterion.
    """
    points, n = [], 0
    trained: dict[str, Any] = {"halting_threshold": None, "exit": None, "exit_scope": "token"}
    by_criterion = trained if exit is None else {"exit": exit, "exit_scope": exit_scope}
    # Stacks whose tokens can stop by what is swept; a criterion needs a threshold, of any value, to be asked.
    with model.execution(**by_criterion | {"halting_threshold": None if exit is None else 1.0}):
        stacks = list(model.halting_thresholds())
    for threshold in (None, *thresholds):
        changes = trained if threshold is None else by_criterion | {"halting_threshold": threshold}
        with model.execution(**changes):
            result = evaluate()
            depths = expected_depths(model.config, n_steps=model.n_rounds(), exits=model.exits())
        n = result["n"]
        points.append(point_of(threshold, metric, result, {name: depths[name] for name in stacks}))
        on_point(points[-1])
    return points, n


def choose(points: Sequence[Point], max_drop: float, perfect: float = 1.0) -> Point:
    """Return the point of the fewest realised MACs whose score is within `max_drop` of the first point's.

    Of several with equal MACs, that of the best score. Where none is cheaper than the first point, at the trained
    thresholds, the first point is chosen: a better score alone is no reason to change a threshold.
    """
    trained = points[0]
    least = trained.score - (max_drop + _ROUNDING) * unit_of(perfect)
    cheaper = [p for p in points if p.score >= least and p.macs["realised"] < trained.macs["realised"]]
    return min(cheaper, key=lambda p: (p.macs["realised"], -p.score), default=trained)


def is_of(found: TunedThreshold | Tuning, checkpoint: str, weights: str) -> bool:
    """Return whether something was found of the weights of a checkpoint; a mean of several may be made anew.

    Args:
        checkpoint: its name. weights: their SHA-256.
    """
    return found.checkpoint == checkpoint and found.weights in (None, weights)


def read_curve(run: LoadedRun) -> Tuning | None:
    """Return the sweep that was stored with a run (`ostinato tune-threshold`) for its weights; None: there is none.

    Raises:
        CheckpointError: it cannot be read.
    """

    def curve(content: dict[str, Any]) -> Tuning:
        points = tuple(Point(**point) for point in content["points"])
        plain = {key: value for key, value in _known(Tuning, content).items() if key not in ("points", "chosen")}
        if plain.get("oracle"):
            plain["oracle"] = Point(**plain["oracle"])
        return Tuning(points=points, chosen=Point(**content["chosen"]), **plain)

    found = _read(run.directory / f"{CURVE}.json", curve, "measure it again")
    return found if found is not None and is_of(found, run.checkpoint.name, run.hashes[1]) else None


def point_of(
    threshold: float | None, metric: str, result: dict[str, Any], depths: Mapping[str, ExpectedDepth]
) -> Point:
    """Return the point of an evaluation's result, given the stacks whose tokens may halt."""
    skipped = {
        stack: 1.0 - result["depth"][stack] / one.rounds if one.skips_halted else 0.0 for stack, one in depths.items()
    }
    return Point(
        threshold,
        # A model whose tokens all run all rounds has none.
        result.get("halting_threshold", {}),
        float(result[metric]),
        skipped,
        result["macs"],
        result["seconds"],
        result.get("decoding_seconds"),
    )
