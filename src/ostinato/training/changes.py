"""Which settings of a run may change when it is resumed, and which are refused.

Settings that describe a run, place it on a machine, or say how many checkpoints stay are free: they do not change its
results; recipe.yaml gets how many stay. Settings that change nothing of what was learned so far may change too, and are
recorded: how long the run is, how its learning rate goes on, when it logs, evaluates, saves and stops, what is measured
at its end, and how passes are compiled, evaluated in batches and decoded. Files of examples may lie elsewhere: other
examples are refused. All other settings are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ostinato.config.recipe import Recipe
from ostinato.config.schema import leaves
from ostinato.errors import CheckpointError
from ostinato.tasks.own_files import SPLITS
from ostinato.training.optim import learning_rate

FREE_TO_CHANGE = (
    "description",
    "reference",
    "training.device",
    "training.n_threads",
    "training.expert_backend",
    "training.compaction",
    "training.keep_",  # last and best
    "training.loggers",
    "training.parallel",
)
"""Beginnings of the keys of settings that may differ where a run is resumed."""
_PLACES = tuple(f"data.{split}" for split in SPLITS)
"""Beginnings of the keys that say where examples lie; `check_data` refuses others than a run has read."""
_LENGTH, _SCHEDULE = "training.n_updates", "training.schedule."
_RECORDED = (
    _LENGTH,
    _SCHEDULE,
    "training.evaluate_every",
    "training.log_every",
    "training.save_every",
    "training.selection.patience",
    "training.compile",
    "data.eval_tokens_per_batch",
    "decoding.pack_weights",
    "decoding.static_cache",
    "evaluation.",
)

Changes = dict[str, tuple[Any, Any]]
"""Settings by dotted path, with the value they had and the one they have now; None where there is none."""


def is_free(key: str) -> bool:
    """Return True for a setting, by its dotted path, that does not change the results of a run."""
    return key.startswith(FREE_TO_CHANGE)


@dataclass(frozen=True, slots=True)
class Done:
    """What a run has done so far.

    Args:
        update: of the last checkpoint, 0 without one. evaluated: the last update that an evaluation is recorded of.
        n_checkpoints, n_ranked: how many it has, and how many of them are ranked as the best.
    """

    update: int = 0
    evaluated: int = 0
    n_checkpoints: int = 0
    n_ranked: int = 0


def changes_between(old: Recipe, new: Recipe, done: Callable[[], Done], where: object) -> Changes:
    """Return the changes that have to be recorded where a run goes on with another recipe.

    Args:
        done: is asked where anything is changed. where: its directory, for the error.

    Raises:
        CheckpointError: with a line for every setting that may not change.
    """
    before, now = (dict(leaves(recipe.model_dump(mode="json"))) for recipe in (old, new))
    changes = {
        key: (before.get(key), now.get(key))
        for key in before | now
        if not (is_free(key) or key.startswith(_PLACES))
        and (key in before, before.get(key)) != (key in now, now.get(key))
    }
    refused = {key: "" for key in changes if not key.startswith(_RECORDED)}
    refused |= dict(_too_late(old, new, done(), changes)) if changes else {}
    if refused:
        lines = [
            f"{where}: --resume cannot change {key}: {_shown(before, key)} in the run, {_shown(now, key)} now{reason}"
            for key, reason in refused.items()
        ]
        raise CheckpointError("\n".join(lines))
    return changes


def _too_late(old: Recipe, new: Recipe, done: Done, changes: Changes) -> Iterator[tuple[str, str]]:
    """Yield the settings that the updates which are done contradict, and how they do."""
    update = done.update
    if new.training.n_updates < update:
        yield _LENGTH, f"; {update} updates are done"
        return
    if reason := _lost_checkpoints(new, done):
        yield "evaluation.checkpoint", reason
    schedule = [key for key in changes if key.startswith(_SCHEDULE)]
    if not (schedule or _LENGTH in changes) or _first_other_rate(old, new, update) is None:
        return
    length_alone = {"n_updates": new.training.n_updates}
    schedule_alone = {"schedule": new.training.schedule}
    blamed = 0
    for keys, change in ((schedule, schedule_alone), ([_LENGTH] if _LENGTH in changes else [], length_alone)):
        partly = old.model_copy(update={"training": old.training.model_copy(update=change)})
        if (first := _first_other_rate(old, partly, update)) is not None:
            blamed += len(keys)
            yield from ((key, _reason(first)) for key in keys)
    if not blamed:  # neither alone gives other rates, but both together do
        first = _first_other_rate(old, new, update)
        yield from ((key, _reason(first)) for key in changes if key.startswith((_LENGTH, _SCHEDULE)))


def _lost_checkpoints(new: Recipe, done: Done) -> str | None:
    """Return why a mean (best:5) is of checkpoints that are deleted already; None: it is not."""
    role, _, number = new.evaluation.checkpoint.partition(":")
    if role not in ("best", "last"):
        return None
    kept, last = done.n_ranked if role == "best" else done.n_checkpoints, new.training.n_updates
    # An evaluation may be due that was not when the last checkpoint was saved, or was interrupted.
    is_evaluated = done.evaluated >= done.update if done.update else done.n_ranked > 0
    is_counted = done.n_checkpoints > 0 if role == "last" else is_evaluated
    first = done.update + is_counted  # else the update of the last checkpoint itself is still to be counted
    if role == "best" and done.update <= (begins := new.training.halting.off_updates) < last:
        kept, first = 0, begins + 1  # what is ranked up to then, is no longer later
    # Evaluations are at multiples of `evaluate_every`, and those that count among the newest are saved at multiples of
    # `save_every`; both also at the last update.
    every = new.training.save_every if role == "last" else new.training.evaluate_every
    to_come = sum(one == last or (one > 0 and one % every == 0) for one in range(first, last + 1))
    if kept + to_come >= int(number or 1):
        return None
    return f"; the run kept {kept} (training.keep_{role}), and at most {to_come} follow"


def _reason(first: int | None) -> str:
    return f"; update {first}, which is done, would have had another learning rate"


def _first_other_rate(old: Recipe, new: Recipe, update: int) -> int | None:
    """Return the first of the updates that are done which has another learning rate in two recipes."""

    def rate(recipe: Recipe, at: int) -> float:
        config = recipe.training
        return learning_rate(config.optimizer, config.schedule, at, config.n_updates, recipe.model.d_model)

    return next((at for at in range(1, update + 1) if rate(old, at) != rate(new, at)), None)


def _shown(settings: dict[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "absent"
