"""Writing weights of a test's own into a checkpoint, as if the library had written them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ostinato.data.disk import sha256_of


def write_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Replace the weights of a checkpoint, and the SHA-256 beside them."""
    save_file(tensors, folder / "model.safetensors")
    note_weights(folder)


def note_weights(folder: Path) -> None:
    """Note the SHA-256 of the weights that are there now."""
    path = folder / "model.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    description["sha256"] = {"model.safetensors": sha256_of(folder / "model.safetensors")}
    path.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
