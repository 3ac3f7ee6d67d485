"""The training loop: updates, records, evaluations and saves, from where the run stands to where it ends."""

from __future__ import annotations

import math
import time

import torch

from ostinato.data.batch import Batch
from ostinato.data.example import Example
from ostinato.data.subset import take_evenly
from ostinato.errors import TrainingError
from ostinato.evaluation import evaluate
from ostinato.models import Model, build_model
from ostinato.tasks.checks import FORCED_METRICS
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.depth import DepthWatch
from ostinato.training.freeze import freeze
from ostinato.training.initial import InitialReport, start_from
from ostinato.training.optim import build_optimizer
from ostinato.training.prepare import Prepared
from ostinato.training.records import Records
from ostinato.training.reporter import Reporter
from ostinato.training.rng import preserved_randomness, seed_everything
from ostinato.training.routing import CollapseWatch
from ostinato.training.state import Progress, Window
from ostinato.training.update import Gradient, Updater

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
_SHOWN_INDICES = 20


class Session:
    """One process's part of a run.

    Args:
        prepared: data, tokenizers and the resolved recipe.
        checkpoints: where the run goes on from, if there is a last one.
        records: cut back to what the last checkpoint knows of.
    """

    def __init__(
        self,
        prepared: Prepared,
        checkpoints: Checkpoints,
        records: Records,
        reporter: Reporter,
        device: torch.device,
    ) -> None:
        self.prepared, self.checkpoints, self.records, self.reporter = prepared, checkpoints, records, reporter
        self.config = prepared.recipe.training
        self.device = device
        self.initial: InitialReport | None = None  # of a model that starts from another, in its first session
        checkpoints.recover()
        seed_everything(prepared.recipe.seed)
        if checkpoints.last_update() is None:
            self.progress = Progress()
            self.model: Model = build_model(prepared.recipe.model).to(device)
            if self.config.init_from is not None:
                self.initial = start_from(self.model, self.config)
            self.optimizer = self._optimizer()
        else:
            self._go_on()
        self.updater = Updater(self.model, self.optimizer, self.config)
        records.cut(self.progress.metrics_bytes)
        self.model.set_activation_checkpointing(self.config.checkpoint_activations)
        self.model.set_expert_backend(self.config.expert_backend)
        self.model.set_compaction(self.config.compaction)
        self.model.set_dropout_draws(self.config.dropout_draws)
        self.model.train()
        self._earlier_seconds, self._began = self.progress.seconds, time.perf_counter()
        # Seconds inside updates, and their labels, since the last record: of this session only, unlike the window.
        self._busy, self._busy_labels = 0.0, 0
        self._watch = CollapseWatch(self.config.schedule.warmup)
        self._depth_watch = DepthWatch(max(self.config.schedule.warmup, self.config.halting.settled))
        self._selection: list[Example] | None = None

    def _go_on(self) -> None:
        """Take up the last checkpoint: random states last, because building a model draws numbers."""
        saved = self.checkpoints.load(self.device)
        self.progress, self.model = saved.progress, saved.model
        self.optimizer = self._optimizer()
        saved.restore_optimizer(self.optimizer)
        self.prepared.batches.restore(self.progress.batches)
        saved.random.restore()

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
            TrainingError: a loss or a gradient that is not finite.
        """
        while self.progress.update < self.config.n_updates and self.progress.stopped is None:
            began = time.perf_counter()
            rate, gradient = self._update()
            self._busy += time.perf_counter() - began
            self._follow_up(rate, gradient)
        return self.progress

    def _update(self) -> tuple[float, Gradient]:
        """Do one optimiser step; return the learning rate and what it was made of."""
        update = self.progress.update + 1
        batches = [next(self.prepared.batches) for _ in range(self.config.accumulate)]
        gradient = self.updater.accumulate(batches, update, observed=self._is_logged(update))
        if not gradient.is_finite:
            self._fail(update, gradient, batches)
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
        selection, recipe = self.config.selection, self.prepared.recipe
        with preserved_randomness():
            result = evaluate(
                self.model,
                self._selection_examples(),
                self.prepared.tokenizers,
                data=recipe.data,
                decoding=recipe.decoding,
                metrics=[] if selection.metric in FORCED_METRICS else [selection.metric],
                name=selection.split,
            )
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
        directory = self.checkpoints.save(self.model, self.optimizer, self.progress)
        self.reporter.on_save(self.progress.update, directory)

    def _fail(self, update: int, gradient: Gradient, batches: list[Batch]) -> None:
        """Save the state before this update, and stop.

        Raises:
            TrainingError: always.
        """
        parts = [
            {"loss_sum": repr(loss), "is_finite": math.isfinite(loss), "indices": list(batch.indices)}
            for loss, batch in zip(gradient.losses, batches, strict=True)
        ]
        suspects = [part for part in parts if not part["is_finite"]] or parts
        loss, norm = sum(gradient.losses) / gradient.n_labels, gradient.norm
        split = self.prepared.task.splits()[0]
        report = {"update": update, "split": split, "loss": repr(loss), "grad_norm": repr(norm), "batches": parts}
        self.progress.batches = self.prepared.batches.state()
        directory = self.checkpoints.save_failed(self.model, self.optimizer, self.progress, report)
        indices = [index for part in suspects for index in part["indices"]]  # type: ignore[attr-defined]
        more = f", ... ({len(indices)} in all)" if len(indices) > _SHOWN_INDICES else ""
        raise TrainingError(
            f"update {update}: the loss is {loss} and the norm of its gradient {norm}; the run stops. "
            f"The batch holds the examples {', '.join(map(str, indices[:_SHOWN_INDICES]))}{more} of {split} "
            f"(0-based). The state before this update and all indices are in {directory}. Likely causes: a learning "
            "rate that is too high (training.optimizer.lr), too few warm-up updates, or no clipping"
        )
