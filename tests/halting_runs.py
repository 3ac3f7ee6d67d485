"""Finished runs whose tokens halt at every depth: trained for a moment, with gates drawn afterwards."""

from __future__ import annotations

from pathlib import Path

import torch

from ostinato.evaluation.loading import find_checkpoint
from ostinato.models import LanguageModel, Seq2Seq, save_model
from ostinato.models.checkpoint import load_model
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

N_ROUNDS = 4
TINY = ["task.n_train=40", "task.n_eval=24", "training.n_updates=2", "training.n_threads=1", "training.device=cpu"]
DEEP = [f"model.encoder.n_steps={N_ROUNDS}", f"model.decoder.n_steps={N_ROUNDS}", "decoding.max_length=6"]
RULES = [
    "model.encoder.halting={kind: act, epsilon: 0.1}",
    "model.decoder.halting={kind: stick_breaking, threshold: 0.95, initial_bias: -1.0}",
]


def halting_run(folder: Path) -> Path:
    """Train a run on reversed digits: ACT in the encoder, stick-breaking in the decoder."""
    train(load_recipe("digits/universal", [*TINY, *DEEP, *RULES]), folder)
    draw_gates(folder)
    return folder


def plain_run(folder: Path) -> Path:
    """Train one in which no token halts."""
    train(load_recipe("digits/universal", TINY), folder)
    return folder


def draw_gates(run: Path) -> None:
    """Give the best checkpoint gates that tell tokens apart."""
    where = find_checkpoint(run)
    model = load_model(where, torch.device("cpu"))
    _draw(model)
    save_model(model, where)


@torch.no_grad()
def _draw(model: Seq2Seq | LanguageModel) -> None:
    torch.manual_seed(0)
    for unit in model.banks.halting.values():
        for name, parameter in unit.named_parameters():
            if name.endswith("weight"):
                parameter.normal_(std=0.4)
