"""A program for several processes: trains an exported folder by Trainer, and says what came out."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from test_training import trainer_of
from transformers import AutoModelForCausalLM

import ostinato.hf  # noqa: F401

folder, out, batch = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
trainer = trainer_of(
    AutoModelForCausalLM.from_pretrained(folder),
    out,
    batch,
    max_steps=4,
    train_sampling_strategy="sequential",
    optim="sgd",
)
trainer.train()
if trainer.is_world_process_zero():
    found = {"weights": trainer.model.state_dict(), "processes": trainer.args.world_size}
    torch.save(found, out / "found.pt")
