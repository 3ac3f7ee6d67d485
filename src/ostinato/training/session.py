"""The training loop: updates, records, evaluations and saves, from where the run stands to where it ends.

Every process of a run has a session and does all of it, except evaluating and writing, which rank 0 does alone. All
decisions (which checkpoint is the best, when to stop) are taken from numbers that are the same in every process:
results that rank 0 broadcasts, or sums over all processes.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ostinato.data.batch import Batch
from ostinato.data.example import Example, take_evenly
from ostinato.errors import DataError, TrainingError
from ostinato.evaluation import evaluate
from ostinato.kernels import noting_backends, peak_memory
from ostinato.models import Model, build_model
from ostinato.tasks.checks import FORCED_METRICS
from ostinato.training.checkpoint import Checkpoints, check_hashes, read_state
from ostinato.training.depth import DepthWatch
from ostinato.training.freeze import freeze
from ostinato.training.initial import InitialReport, start_from
from ostinato.training.moving_average import MovingAverage
from ostinato.training.optim import build_optimizer
from ostinato.training.parallel import replicated
from ostinato.training.prepare import Prepared
from ostinato.training.processes import Interrupts, Processes
from ostinato.training.records import Records
from ostinato.training.reporter import Reporter
from ostinato.training.rng import RandomState, preserved_randomness, seed_everything, seed_rank
from ostinato.training.routing import CollapseWatch
from ostinato.training.state import LossWindow, Progress
from ostinato.training.update import Gradient, Updater, execution_of

if TYPE_CHECKING:
    from ostinato.training.sharding import Sharded

_NOT_RECORDED = (
    "name",
    "by",
    "macro",
    "decoding",
    "depth",
    "halting",
    "halting_threshold",
    "exit",
    "macs",
    "routing",
    "n_steps",
    "seconds",
    "decoding_seconds",
)
"""Results of an evaluation that are not written to metrics.jsonl as scores."""
_SHOWN_INDICES = 20


class Session:
    """One process's part of a run.

    Args:
        prepared: data, tokenizers and the resolved recipe.
        checkpoints: the run is resumed from the last one, where there is one.
        records: written by rank 0, and cut back to what they held when the last checkpoint was saved.
        reporter: a `Reporter` in all processes but rank 0.
        processes: those of the run.
    """

    def __init__(
        self,
        prepared: Prepared,
        checkpoints: Checkpoints,
        records: Records,
        reporter: Reporter,
        device: torch.device,
        processes: Processes,
    ) -> None:
        self.prepared, self.checkpoints, self.records, self.reporter = prepared, checkpoints, records, reporter
        self.processes = processes
        self.config = prepared.recipe.training
        self.device = device
        self.initial: InitialReport | None = None  # only where the model has just been started from another
        if processes.is_main:
            checkpoints.recover()
        processes.barrier()
        seed_everything(prepared.recipe.seed)
        # Rank 0's: where files are shared over a network, another process may still see an earlier one.
        last = processes.broadcast(checkpoints.last_update)
        if last is None:
            self._start()
        else:
            self._resume(last)
        self.updater = Updater(self.model, self.optimizer, self.config, prepared.recipe.seed, self.parallel)
        if processes.is_main:
            records.cut(self.progress.metrics_bytes, self.progress.metrics_sha256)
            records.mend_timings()
        self._last_evaluation = processes.broadcast(records.last_evaluation)
        self.model.train()
        self._earlier_seconds, self._began = self.progress.seconds, time.perf_counter()
        # Seconds inside updates, and their labels, since the last record; unlike the window of losses not saved.
        self._busy, self._busy_labels = 0.0, 0
        self._collapse_watch = CollapseWatch(self.config.schedule.warmup)
        advice = {name: stack.halting.advice for name, stack in prepared.recipe.model.stacks().items()}
        self._depth_watch = DepthWatch(
            max(self.config.schedule.warmup, self.config.halting.settled),
            {name: found for name, found in advice.items() if found is not None},
        )
        self._selection: list[Example] | None = None
        self._interrupts = Interrupts(processes)

    def _start(self) -> None:
        """Make a new model, the same in every process; from then on each process draws its own random numbers."""
        self.progress = Progress()
        sharded = self._new_sharded()
        model: Model | None = None
        if sharded is None or self.processes.is_main:
            model = build_model(self.prepared.recipe.model, execution_of(self.config))
            if sharded is None:
                model.to(self.device)
            if self.config.init_from is not None:
                self.initial = start_from(model, self.config)
        if sharded is not None:
            self.processes.barrier()  # what rank 0 starts from may take longer than a sum may be waited for
            sharded.scatter(model)
            self._hold(sharded.model, sharded)
        elif model is not None:
            self.processes.broadcast_weights(model)
            self._hold(model)
        seed_rank(self.prepared.recipe.seed, self.processes.rank, 0)

    def _resume(self, update: int) -> None:
        """Load the checkpoint of an update: random states last, because building a model draws numbers."""
        if (sharded := self._new_sharded()) is not None:
            directory = self.checkpoints.directory(update)
            self.progress, randoms = read_state(directory)
            if self.processes.is_main:
                check_hashes(directory)
            self.processes.barrier()
            sharded.load(directory)
            self._hold(sharded.model, sharded)
            sharded.load_optimizer(directory, self.optimizer)
        else:
            saved = self.checkpoints.load(self.device, execution_of(self.config), update)
            self.progress, randoms = saved.progress, saved.randoms
            self._hold(saved.model)
            self.average.resume(saved.trained)
            saved.restore_optimizer(self.optimizer)
        self.progress.judge_patience(self.config.selection)
        self.prepared.batches.restore(self.progress.batches)
        rank, world_size, n_saved = self.processes.rank, self.processes.world_size, len(randoms)
        if rank < n_saved:
            randoms[rank].restore()
        else:
            seed_rank(self.prepared.recipe.seed, rank, self.progress.update)
        if world_size != n_saved:
            message = (
                f"goes on with {world_size} process(es), was saved by {n_saved}: dropout draws other numbers from here"
            )
            self.reporter.on_warning(self.progress.update, message)

    def _new_sharded(self) -> Sharded | None:
        """Return a model without weights of which every process holds a part; None where each holds all of it."""
        if self.config.parallel.kind != "fsdp" or not self.processes.is_distributed:
            return None
        from ostinato.training.sharding import Sharded  # takes seconds to import

        with preserved_randomness(), torch.device("meta"):
            model = build_model(self.prepared.recipe.model, execution_of(self.config))
        freeze(model, self.config.freeze, self.config.freeze_except)
        return Sharded(model, self.processes, self.config, self.device, keep_shared=self.config.parallel.keep_shared)

    def _hold(self, model: Model, sharded: Sharded | None = None) -> None:
        """Train a model from now on: freeze what is not to be trained, and make an optimiser of the rest."""
        self.model = model
        freeze(model, self.config.freeze, self.config.freeze_except)
        self.optimizer = build_optimizer(model, self.config.optimizer)
        self.average = MovingAverage(model, self.config.ema_decay)
        self.parallel = sharded or replicated(model, self.processes, self.config.parallel)

    @property
    def seconds(self) -> float:
        """Time spent on the run, over all sessions."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def run(self) -> Progress:
        """Train until the last update, or until patience runs out.

        Raises:
            KeyboardInterrupt: after the update in which the first Ctrl-C came, with a checkpoint; a second one at once.
            TrainingError: a loss or a gradient that is not finite, or other processes that cannot be reached.
        """
        with self._interrupts:
            if self.progress.update > self._last_evaluation and self._is_evaluated(self.progress.update):
                # The last update was not one to evaluate after when it was saved.
                self._evaluate()
                self._save_progress()
            if self.config.n_updates == 0 and not self.progress.ranking:
                self._follow_up()
            first = self.progress.update + 1
            while self.progress.update < self.config.n_updates and self.progress.stopped is None:
                began = time.perf_counter()
                with noting_backends() as backends:
                    gradient = self._update()
                self._busy += time.perf_counter() - began
                for line in backends if self.progress.update == first else ():
                    self.reporter.on_note(first, line)
                if self._is_logged(self.progress.update):
                    self._log(gradient)
                if self._interrupts.is_pending():
                    self._end_interrupted()
                self._follow_up()
            if self._interrupts.is_pending():  # in the last save: what follows may take long
                self._end_interrupted()
            if self.progress.window.grad_norm is not None:
                # Patience, or a new number of updates on resuming, has ended the run between two records.
                self._log()
                self._save_progress()
        return self.progress

    def _end_interrupted(self) -> NoReturn:
        """Save and end; an evaluation that is due after this update is done when the run is resumed."""
        if self.processes.broadcast(self.checkpoints.last_update) != self.progress.update:
            self._save()
        command = shlex.join(["ostinato", "train", str(self.records.metrics.parent), "--resume"])
        self.reporter.on_note(self.progress.update, f"interrupted: a checkpoint is saved; {command} goes on from it")
        raise KeyboardInterrupt

    def _update(self) -> Gradient:
        """Do one optimiser step; return the gradient's losses and norm."""
        update = self.progress.update + 1
        batches = self._labelled_batches()
        gradient = self.updater.accumulate(batches, update, observed=self._is_logged(update))
        if not gradient.is_finite:
            self.progress.batches = self.prepared.batches.state()
            self._fail(update, gradient, batches)
        window = self.progress.window
        window.lr, window.grad_norm = self.updater.apply(gradient, update), gradient.norm
        self.average.update()
        window.loss, window.nll = window.loss + sum(gradient.losses), window.nll + sum(gradient.nlls)
        window.n_labels += gradient.n_labels
        self._busy_labels += gradient.n_labels
        self.progress.update = update
        return gradient

    def _labelled_batches(self) -> list[Batch]:
        """Return the batches of an update: the next ones that have a label between them.

        Raises:
            DataError: an epoch without any label.
        """
        found, epoch = self.prepared.batches, self.prepared.batches.epoch
        while True:
            batches = [next(found) for _ in range(self.config.accumulate)]
            if any(batch.n_labels for batch in batches):
                return batches
            if found.epoch > epoch + 1:  # the rest of that epoch, and a whole one, had none
                raise DataError("no example of the training split has a label that counts (data.max_source_length?)")

    def _is_logged(self, update: int) -> bool:
        return update == self.config.n_updates or update % self.config.log_every == 0

    def _is_evaluated(self, update: int) -> bool:
        return update == self.config.n_updates or update % self.config.evaluate_every == 0

    def _follow_up(self) -> None:
        """Evaluate and save where it is due; the last update has both."""
        update, config = self.progress.update, self.config
        is_last = update == config.n_updates
        if self._is_evaluated(update):
            self._evaluate()
        if is_last or self.progress.is_ranked or self.progress.stopped or update % config.save_every == 0:
            self._save()

    def _log(self, gradient: Gradient | None = None) -> None:
        """Record mean losses since the last record, and, where it is given, what the last update's gradient tells."""
        window, self.progress.window = self.progress.window, LossWindow()
        record: dict[str, Any] = {
            "kind": "training",
            "update": self.progress.update,
            "loss": window.loss / window.n_labels,
            "nll": window.nll / window.n_labels,
            "lr": window.lr,
            "grad_norm": window.grad_norm,
            "n_labels": window.n_labels,
        }
        for name in ("consistency", "routing", "depth"):
            if (found := getattr(gradient, name, None)) is not None:
                record[name] = found
        speed = {"seconds": self._busy, "labels_per_second": self._busy_labels / max(self._busy, 1e-9)}
        self._busy, self._busy_labels = 0.0, 0
        self._record(record, speed, self.reporter.on_update)
        update = self.progress.update
        for message in self._collapse_watch.warnings(update, record.get("routing", {})):
            self.reporter.on_warning(update, message)
        for message in self._depth_watch.warnings(update, record.get("depth", {})):
            self.reporter.on_warning(update, message)

    def _evaluate(self) -> None:
        """Evaluate on the selection split in rank 0, and rank this model among the best."""
        selection = self.config.selection
        try:
            # Ctrl-C ends an evaluation at once, but neither the exchange of the weights nor that of random states.
            with self.average.shown(), preserved_randomness():
                model = self.parallel.whole_model()
                with self._interrupts.at_once():
                    result = self.processes.broadcast(lambda: self._scores(model))
        except KeyboardInterrupt:
            if self.processes.is_distributed:  # the others wait for this evaluation, and cannot save
                raise
            self._end_interrupted()
        except Exception:  # a metric of the user's own that fails, or no memory left: no update is lost
            if not self.processes.is_distributed and self.checkpoints.last_update() != self.progress.update:
                self._save()
            raise
        begins = self.config.halting.off_updates
        is_best = self.progress.judge(
            float(result[selection.metric]), selection, keep=self.config.keep_best, begins=begins
        )
        record = {
            "kind": "evaluation",
            "update": self.progress.update,
            "split": selection.split,
            "is_best": is_best,
            "scores": {key: value for key, value in result.items() if key not in _NOT_RECORDED},
        }
        self._record(record, {"seconds": result["seconds"]}, self.reporter.on_evaluation)

    def _record(self, record: dict[str, Any], timing: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
        if (most := peak_memory(self.device)) is not None:
            timing = timing | {"peak_memory": most}
        if self.processes.is_main:
            self.records.add(record, timing)
        report(record | timing)

    def _scores(self, model: Model | None) -> dict[str, Any]:
        selection, recipe = self.config.selection, self.prepared.recipe
        if self._selection is None:  # Held, because reading the examples may cost more than scoring them.
            self._selection = list(take_evenly(self.prepared.examples(selection.split), selection.max_examples))
        return evaluate(
            model or self.model,
            self._selection,
            self.prepared.tokenizers,
            data=recipe.data,
            decoding=recipe.decoding,
            metrics=[] if selection.metric in FORCED_METRICS else [selection.metric],
            name=selection.split,
        )

    def _save(self) -> None:
        self.progress.batches = self.prepared.batches.state()
        self.progress.seconds = self.seconds
        randoms = self._randoms()
        if self.processes.is_main:
            self.progress.metrics_bytes, self.progress.metrics_sha256 = self.records.flush()
        if self.processes.is_main or not self.parallel.saves_alone:
            with self.average.shown() as trained:
                directory = self.checkpoints.save(self.parallel, self.optimizer, self.progress, randoms, trained)
            self.reporter.on_save(self.progress.update, directory)
        self.processes.barrier()  # the next update's sums wait for rank 0 minutes only, and a save may take longer

    def _randoms(self) -> list[RandomState]:
        """Return in rank 0 the random states of all processes."""
        return [RandomState.from_dict(state) for state in self.processes.gather(RandomState.capture().to_dict())]

    def _save_progress(self) -> None:
        """Write what has changed since the last checkpoint, which is of the present update, into it."""
        if self.processes.is_main:
            self.progress.metrics_bytes, self.progress.metrics_sha256 = self.records.flush()
            self.checkpoints.save_progress(self.progress)
        self.processes.barrier()

    def _fail(self, update: int, gradient: Gradient, batches: Sequence[Batch]) -> NoReturn:
        """Save the state before an update whose gradient is not finite, and stop the run with a TrainingError."""
        split = self.prepared.task.splits()[0]
        loss, losses = sum(gradient.losses) / gradient.n_labels, list(zip(gradient.losses, batches, strict=True))
        report = {
            "update": update,
            "split": split,
            "loss": repr(loss),
            "grad_norm": repr(gradient.norm),
            "batches": [
                {"loss_sum": repr(loss_sum), "is_finite": math.isfinite(loss_sum), "indices": list(batch.indices)}
                for loss_sum, batch in losses
            ],
        }
        randoms = self._randoms()

        def save() -> str:
            state = self.parallel, self.optimizer, self.progress, randoms
            with self.average.shown() as trained:
                return str(self.checkpoints.save_failed(*state, trained, report))

        directory = self.processes.broadcast(save) if self.parallel.saves_alone else save()
        suspects = [batch for loss_sum, batch in losses if not math.isfinite(loss_sum)] or batches
        indices = [index for batch in suspects for index in batch.indices]
        more = f", ... ({len(indices)} in all)" if len(indices) > _SHOWN_INDICES else ""
        shown = ", ".join(map(str, indices[:_SHOWN_INDICES])) + more
        raise TrainingError(
            f"update {update}: the loss is {loss} and the norm of its gradient {gradient.norm}; the run stops. The "
            f"batch holds the examples {shown} of {split} (0-based). The state before this update and all indices are "
            f"in {directory}. Likely causes: a learning rate that is too high (training.optimizer.lr), too few warm-up "
            "updates, or no clipping"
        )
