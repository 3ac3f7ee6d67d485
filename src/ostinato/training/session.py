"""The training loop: updates, records, evaluations and saves, from where the run stands to where it ends."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ostinato.data.batch import Batch
from ostinato.data.example import Example
from ostinato.errors import TrainingError
from ostinato.evaluation import evaluate
from ostinato.models import LanguageModel, Seq2Seq, build_model
from ostinato.tasks.checks import FORCED_METRICS
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.losses import LossSums, count_labels, label_smoothed_loss
from ostinato.training.optim import build_optimizer, learning_rate, set_learning_rate
from ostinato.training.prepare import Prepared
from ostinato.training.records import Records
from ostinato.training.reporter import Reporter
from ostinato.training.rng import preserved_randomness, seed_everything
from ostinato.training.state import Progress, Window

_NO_SCORES = ("name", "by", "macro", "decoding", "n_steps", "seconds")
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
        checkpoints.recover()
        seed_everything(prepared.recipe.seed)
        if checkpoints.last_update() is None:
            self.progress = Progress()
            self.model: Seq2Seq | LanguageModel = build_model(prepared.recipe.model).to(device)
            self.optimizer = build_optimizer(self.model, self.config.optimizer)
        else:
            self._go_on()
        records.cut(self.progress.metrics_bytes)
        self.model.set_activation_checkpointing(self.config.checkpoint_activations)
        self.model.train()
        self._earlier_seconds, self._began = self.progress.seconds, time.perf_counter()
        # Seconds inside updates, and their labels, since the last record: of this session only, unlike the window.
        self._busy, self._busy_labels = 0.0, 0
        self._selection: list[Example] | None = None

    def _go_on(self) -> None:
        """Take up the last checkpoint: random states last, because building a model draws numbers."""
        saved = self.checkpoints.load(self.device)
        self.progress, self.model = saved.progress, saved.model
        self.optimizer = build_optimizer(self.model, self.config.optimizer)
        saved.restore_optimizer(self.optimizer)
        self.prepared.batches.restore(self.progress.batches)
        saved.random.restore()

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
            rate, norm = self._update()
            self._busy += time.perf_counter() - began
            self._follow_up(rate, norm)
        return self.progress

    def _update(self) -> tuple[float, float]:
        """Do one optimiser step; return the learning rate and the norm of the gradient before clipping."""
        update = self.progress.update + 1
        batches = [next(self.prepared.batches) for _ in range(self.config.accumulate)]
        n_labels = count_labels(batches)
        sums = [self._backward(batch.to(self.device), n_labels) for batch in batches]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        # The one moment of an update at which the host waits for the device.
        numbers = [norm, *(s.loss.detach() for s in sums), *(s.nll for s in sums)]
        values: list[float] = torch.stack([value.float() for value in numbers]).tolist()
        losses, nlls = values[1 : 1 + len(sums)], values[1 + len(sums) :]
        if not all(map(math.isfinite, values)):
            self._fail(update, values[0], losses, batches, n_labels)
        if self.config.clip_norm is not None and values[0] > self.config.clip_norm:
            clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        schedule, d_model = self.config.schedule, self.prepared.recipe.model.d_model
        rate = learning_rate(self.config.optimizer, schedule, update, self.config.n_updates, d_model)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        window = self.progress.window
        window.loss, window.nll = window.loss + sum(losses), window.nll + sum(nlls)
        window.n_labels += n_labels
        self._busy_labels += n_labels
        self.progress.update = update
        return rate, values[0]

    def _backward(self, batch: Batch, n_labels: int) -> LossSums:
        """Add one batch's part of the gradient of the mean loss over the update's `n_labels` labels."""
        with self._precision():
            logits_BTV: Tensor = self.model(batch).logits_BTV
        sums = label_smoothed_loss(logits_BTV, batch.labels_BT, batch.loss_BT, self.config.label_smoothing)
        (sums.loss / n_labels).backward()  # type: ignore[no-untyped-call]
        return sums

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _follow_up(self, rate: float, norm: float) -> None:
        """Record, evaluate and save where it is due; the last update has all three."""
        update, config = self.progress.update, self.config
        is_last = update == config.n_updates
        is_best = False
        if is_last or update % config.log_every == 0:
            self._log(rate, norm)
        if is_last or update % config.evaluate_every == 0:
            is_best = self._evaluate()
        if is_last or is_best or self.progress.stopped or update % config.save_every == 0:
            self._save()

    def _log(self, rate: float, norm: float) -> None:
        """Record the means since the last record."""
        window, self.progress.window = self.progress.window, Window()
        record = {
            "kind": "training",
            "update": self.progress.update,
            "loss": window.loss / window.n_labels,
            "nll": window.nll / window.n_labels,
            "lr": rate,
            "grad_norm": norm,
            "n_labels": window.n_labels,
        }
        timing = {"seconds": self._busy, "labels_per_second": self._busy_labels / max(self._busy, 1e-9)}
        self._busy, self._busy_labels = 0.0, 0
        self.records.add(record, timing)
        self.reporter.on_update(record | timing)

    def _evaluate(self) -> bool:
        """Evaluate on the selection split; return True where this is the best model so far."""
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
        is_best = self.progress.judge(float(result[selection.metric]), selection)
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
        return is_best

    def _selection_examples(self) -> list[Example]:
        """Return the examples that choose the best model, held because reading them may cost more than scoring them."""
        if self._selection is None:
            selection = self.config.selection
            self._selection = list(islice(self.prepared.task.examples(selection.split), selection.max_examples))
        return self._selection

    def _save(self) -> None:
        self.progress.batches = self.prepared.batches.state()
        self.progress.metrics_bytes = self.records.n_bytes()
        self.progress.seconds = self.seconds
        directory = self.checkpoints.save(self.model, self.optimizer, self.progress)
        self.reporter.on_save(self.progress.update, directory)

    def _fail(self, update: int, norm: float, losses: list[float], batches: list[Batch], n_labels: int) -> None:
        """Save the state before this update, and stop.

        Raises:
            TrainingError: always.
        """
        parts = [
            {"loss_sum": repr(loss), "is_finite": math.isfinite(loss), "indices": list(batch.indices)}
            for loss, batch in zip(losses, batches, strict=True)
        ]
        suspects = [part for part in parts if not part["is_finite"]] or parts
        loss = sum(losses) / n_labels
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
