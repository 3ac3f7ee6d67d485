"""Settings that say how a run is done or described, and not what it finds: a model that ignores them is none the worse.

Every other setting of a recipe has an effect, or is refused where another one takes it away
(`tests/training/test_every_setting.py`).
"""

from __future__ import annotations

FREE_TO_CHANGE = (
    "description",
    "reference",
    "training.device",
    "training.n_threads",
    "training.expert_backend",
    "training.compaction",
    "training.keep_",  # last and best
)
"""Beginnings of the keys of settings that may differ where a run is resumed."""

OPERATIONAL = (
    *FREE_TO_CHANGE,
    "name",
    "training.log_every",
    "training.save_every",
    "training.compile",
    "training.checkpoint_activations",
    "decoding.pack_weights",
    "data.eval_tokens_per_batch",
)
"""Beginnings of the keys of all settings of this sort: text, logging, devices, memory and speed."""
