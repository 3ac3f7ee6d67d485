"""Copies what the tests need of reference numbers: `python tests/families/make_fixture.py FOLDER/FAMILY [NAME ...]`.

FOLDER/FAMILY holds `weights.safetensors`, `outputs.safetensors` and `config.json`. Kept are the weights, and of the
outputs ids, masks, logits and gradients of all variants, and what else is named (patterns, `*` stands for anything);
without what is named behind a minus sign.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from safetensors.torch import load_file, save_file

KEPT = ("*ids", "*mask", "float32/*/logits", "float64/*/logits", "rounded/*/grad/*")
TOLD = (
    "family",
    "source",
    "torch",
    "transformers",
    "patches",
    "settings",
    "float32 against float64",
    "notes",
    "defects avoided",
)


def main() -> None:
    folder, *named = sys.argv[1:]
    source = Path(folder)
    target = Path(__file__).parents[1] / "fixtures" / "families" / source.name
    outputs = load_file(source / "outputs.safetensors")
    patterns = (*KEPT, *(name for name in named if name[0] != "-"))
    left_out = [name[1:] for name in named if name[0] == "-"]
    kept = {name: x for name, x in outputs.items() if _matches(name, patterns) and not _matches(name, left_out)}
    weights = {f"weights/{name}": x for name, x in load_file(source / "weights.safetensors").items()}
    told = json.loads((source / "config.json").read_text(encoding="utf-8"))
    save_file(kept | weights, f"{target}.safetensors")
    text = json.dumps({key: told[key] for key in TOLD if key in told}, indent=1)
    Path(f"{target}.json").write_text(text + "\n", encoding="utf-8")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


if __name__ == "__main__":
    main()
