"""A program for several processes: trains an exported folder by Trainer, whole and resumed, and says what came out.

    accelerated.py FOLDER OUT AUTO SETTINGS

AUTO is the class of transformers that reads the folder; SETTINGS is JSON, more of the arguments of the Trainer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from test_training import plainly

import ostinato.hf  # noqa: F401

folder, out, auto, settings = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
weights = {}
for name, start in (("whole", None), ("resumed", str(out / "checkpoint-2"))):
    model = getattr(transformers, auto).from_pretrained(folder)
    trainer = plainly(model, out, 2, save_strategy="steps", save_steps=2, **settings)
    trainer.train(resume_from_checkpoint=start)
    weights[name] = {key: x.clone() for key, x in model.state_dict().items()}
if trainer.is_world_process_zero():
    torch.save(weights | {"processes": trainer.args.world_size}, out / "found.pt")
