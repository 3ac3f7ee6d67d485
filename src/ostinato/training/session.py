"""The training loop: updates, records, evaluations and saves, from where the run stands to where it ends.

Every process of a run has a session and does all of it, but for what the first one does for all: evaluate, and write.
Whatever decides how the run goes on is known to all of them: what the first one found, or a sum over them.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from ostinato.data.batch import Batch
from ostinato.data.example import Example, take_evenly
from ostinato.errors import TrainingError
from ostinato.evaluation import evaluate
from ostinato.models import Model, build_model
from ostinato.tasks.checks import FORCED_METRICS
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.depth import DepthWatch
from ostinato.training.failure import Failure
from ostinato.training.freeze import freeze
from ostinato.training.initial import InitialReport, start_from
from ostinato.training.interrupts import Interrupts
from ostinato.training.optim import build_optimizer
from ostinato.training.prepare import Prepared
from ostinato.training.processes import ALONE, Processes
from ostinato.training.records import Records
from ostinato.training.reporter import Reporter
from ostinato.training.rng import RandomState, preserved_randomness, seed_apart, seed_everything
from ostinato.training.routing import CollapseWatch
from ostinato.training.state import Progress, Window
from ostinato.training.update import Gradient, Updater, execution_of

_NO_SCORES = (
    "name",
    "by",
    "macro",
    "decoding",
    "depth",
    "halting",
    "halting_threshold",
    "macs",
    "routing",
    "n_steps",
    "seconds",
    "decoding_seconds",
)


class Session:
    """One process's part of a run.

    Args:
        prepared: data, tokenizers and the resolved recipe.
        checkpoints: where the run goes on from, if there is a last one.
        records: cut back to what the last checkpoint knows of.
        reporter: of a process that is not the first, one that says nothing.
        processes: all of the run.
    """

    def __init__(
        self,
        prepared: Prepared,
        checkpoints: Checkpoints,
        records: Records,
        reporter: Reporter,
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        self.prepared, self.checkpoints, self.records, self.reporter = prepared, checkpoints, records, reporter
        self.processes = processes
        self.config = prepared.recipe.training
        self.device = device
        self.initial: InitialReport | None = None  # of a model that starts from another, in its first session
        if processes.is_first:
            checkpoints.recover()
        processes.meet()
        seed_everything(prepared.recipe.seed)
        if checkpoints.last_update() is None:
            self._begin()
        else:
            self._go_on()
        self.updater = Updater(self.model, self.optimizer, self.config, processes)
        records.cut(self.progress.metrics_bytes)
        self.model.train()
        self._earlier_seconds, self._began = self.progress.seconds, time.perf_counter()
        # Seconds inside updates, and their labels, since the last record: of this session only, unlike the window.
        self._busy, self._busy_labels = 0.0, 0
        self._watch = CollapseWatch(self.config.schedule.warmup)
        self._depth_watch = DepthWatch(max(self.config.schedule.warmup, self.config.halting.settled))
        self._selection: list[Example] | None = None

    def _begin(self) -> None:
        """Make a new model: the same in every process, which draw apart from then on."""
        self.progress = Progress()
        self.model: Model = build_model(self.prepared.recipe.model, execution_of(self.config)).to(self.device)
        if self.config.init_from is not None:
            self.initial = start_from(self.model, self.config)
        self.processes.take_weights(self.model)
        self.optimizer = self._optimizer()
        seed_apart(self.prepared.recipe.seed, self.processes.rank, 0)

    def _go_on(self) -> None:
        """Take up the last checkpoint: random states last, because building a model draws numbers."""
        saved = self.checkpoints.load(self.device, execution_of(self.config))
        self.progress, self.model = saved.progress, saved.model
        self.optimizer = self._optimizer()
        saved.restore_optimizer(self.optimizer)
        self.prepared.batches.restore(self.progress.batches)
        self._draw_on(saved.randoms)

    def _draw_on(self, saved: list[RandomState]) -> None:
        """Draw the random numbers that would have followed; with another number of processes, others."""
        rank, size, update = self.processes.rank, self.processes.size, self.progress.update
        if rank < len(saved):
            saved[rank].restore()
        else:
            seed_apart(self.prepared.recipe.seed, rank, update)
        if size != len(saved):
            message = (
                f"goes on with {size} process(es), was saved by {len(saved)}: dropout draws other numbers from here"
            )
            self.reporter.on_warning(update, message)

    def _optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimiser of what is to be trained."""
        freeze(self.model, self.config.freeze)
        return build_optimizer(self.model, self.config.optimizer)

    @property
    def seconds(self) -> float:
        """Time spent on the run, over all sessions."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def run(self) -> Progress:
        """Train until the last update, or until patience runs out.

        Raises:
            TrainingError: a loss or a gradient that is not finite, or other processes that cannot be reached.
        """
        with Interrupts(self.processes) as interrupts:
            interrupts.check()
            while self.progress.update < self.config.n_updates and self.progress.stopped is None:
                began = time.perf_counter()
                rate, gradient = self._update()
                self._busy += time.perf_counter() - began
                with interrupts.at_once():
                    self._follow_up(rate, gradient)
                interrupts.check()
        return self.progress

    def _update(self) -> tuple[float, Gradient]:
        """Do one optimiser step; return the learning rate and what it was made of."""
        update = self.progress.update + 1
        batches = [next(self.prepared.batches) for _ in range(self.config.accumulate)]
        gradient = self.updater.accumulate(batches, update, observed=self._is_logged(update))
        if not gradient.is_finite:
            self.progress.batches = self.prepared.batches.state()
            raise TrainingError(self._failure(update, gradient, batches))
        rate = self.updater.apply(gradient, update)
        window = self.progress.window
        window.loss, window.nll = window.loss + sum(gradient.losses), window.nll + sum(gradient.nlls)
        window.n_labels += gradient.n_labels
        self._busy_labels += gradient.n_labels
        self.progress.update = update
        return rate, gradient

    def _is_logged(self, update: int) -> bool:
        return update == self.config.n_updates or update % self.config.log_every == 0

    def _follow_up(self, rate: float, gradient: Gradient) -> None:
        """Record, evaluate and save where it is due; the last update has all three."""
        update, config = self.progress.update, self.config
        is_last = update == config.n_updates
        is_ranked = False
        if self._is_logged(update):
            self._log(rate, gradient)
        if is_last or update % config.evaluate_every == 0:
            self._evaluate()
            is_ranked = self.progress.is_ranked
        if is_last or is_ranked or self.progress.stopped or update % config.save_every == 0:
            self._save()

    def _log(self, rate: float, gradient: Gradient) -> None:
        """Record the means since the last record, and what routers and halting rules did in the last batch."""
        window, self.progress.window = self.progress.window, Window()
        record = {
            "kind": "training",
            "update": self.progress.update,
            "loss": window.loss / window.n_labels,
            "nll": window.nll / window.n_labels,
            "lr": rate,
            "grad_norm": gradient.norm,
            "n_labels": window.n_labels,
        }
        if gradient.routing is not None:
            record["routing"] = gradient.routing
        if gradient.depth is not None:
            record["depth"] = gradient.depth
        timing = {"seconds": self._busy, "labels_per_second": self._busy_labels / max(self._busy, 1e-9)}
        self._busy, self._busy_labels = 0.0, 0
        self.records.add(record, timing)
        self.reporter.on_update(record | timing)
        update = self.progress.update
        for message in self._watch.warnings(update, gradient.routing or {}):
            self.reporter.on_warning(update, message)
        for message in self._depth_watch.warnings(update, gradient.depth or {}):
            self.reporter.on_warning(update, message)

    def _evaluate(self) -> None:
        """Evaluate on the selection split, and take note of how good this model is."""
        selection = self.config.selection
        result = self.processes.from_first(self._scores)
        # Gates that nothing has trained yet say nothing about how long to wait.
        waits = self.progress.update > self.config.halting.off_updates
        is_best = self.progress.judge(
            float(result[selection.metric]), selection, keep=self.config.keep_best, waits=waits
        )
        record = {
            "kind": "evaluation",
            "update": self.progress.update,
            "split": selection.split,
            "is_best": is_best,
            "scores": {key: value for key, value in result.items() if key not in _NO_SCORES},
        }
        timing = {"seconds": result["seconds"]}
        self.records.add(record, timing)
        self.reporter.on_evaluation(record | timing)

    def _scores(self) -> dict[str, Any]:
        """Return the scores of the present model on the selection split."""
        selection, recipe = self.config.selection, self.prepared.recipe
        with preserved_randomness():
            return evaluate(
                self.model,
                self._selection_examples(),
                self.prepared.tokenizers,
                data=recipe.data,
                decoding=recipe.decoding,
                metrics=[] if selection.metric in FORCED_METRICS else [selection.metric],
                name=selection.split,
            )

    def _selection_examples(self) -> list[Example]:
        """Return the examples that choose the best model, held because reading them may cost more than scoring them."""
        if self._selection is None:
            selection = self.config.selection
            self._selection = list(take_evenly(self.prepared.task.examples(selection.split), selection.max_examples))
        return self._selection

    def _save(self) -> None:
        self.progress.batches = self.prepared.batches.state()
        self.progress.metrics_bytes = self.records.n_bytes()
        self.progress.seconds = self.seconds
        if randoms := self.processes.gather(RandomState.capture()):
            directory = self.checkpoints.save(self.model, self.optimizer, self.progress, randoms)
            self.reporter.on_save(self.progress.update, directory)

    def _failure(self, update: int, gradient: Gradient, batches: list[Batch]) -> str:
        """Save the state before an update whose gradient is not finite, and return what to say of it."""
        failure = Failure(update, gradient, batches, self.prepared.task.splits()[0])
        randoms = self.processes.gather(RandomState.capture())
        directory = self.processes.from_first(
            lambda: self.checkpoints.save_failed(self.model, self.optimizer, self.progress, failure.report(), randoms)
        )
        return failure.message(directory)
