"""Write the tables of docs/speed.md and docs/speed-processors.md anew from the JSON lines in docs/results.

    python benchmarks/speed_document.py
    python benchmarks/speed_document.py --check

A table stands between <!-- begin NAME --> and <!-- end NAME -->, where NAME.jsonl is what a study
wrote; without one it says that nothing was measured yet. Tables of details stay with the studies, which print them
from the same rows (`--read`).
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from layer_study import read_runs

ROOT = Path(__file__).parents[1]
STUDIES = {
    "train-step": "update_report",
    "train-step-zen5": "update_report",
    "train-step-intel": "update_report",
    "train-step-avx2": "update_report",
    "decode": "decode_report",
    "decode-avx2": "decode_report",
    "startup": "startup",
    "startup-avx2": "startup",
}
"""What judges and shows the rows of a file."""
NOT_MEASURED = "Not measured yet."
DETAILS = ("Where the time of", "Time / time of the matmul limit", "New tokens/s")
"""Tables that begin so are left out."""
_TABLE = re.compile(r"(<!-- begin (?P<name>[\w-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def tables(name: str, results: Path) -> str:
    """Return the tables of one study."""
    path = results / f"{name}.jsonl"
    if not path.exists():
        return NOT_MEASURED
    study = importlib.import_module(STUDIES[name])
    runs = read_runs([path])
    return _without_details(str(study.report(runs, study.verdicts(runs))).strip())


def _without_details(text: str) -> str:
    """Return a report without the tables of details: a paragraph that announces one, and the next, which is it."""
    parts = text.split("\n\n")
    kept = [not part.startswith(DETAILS) for part in parts]
    return "\n\n".join(part for part, here, before in zip(parts, kept, [True, *kept], strict=False) if here and before)


def filled(text: str, results: Path) -> str:
    """Return a document with its tables as the results have them."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}\n{tables(found['name'], results)}\n\n{found[3]}"

    return _TABLE.sub(fill, text)


def main(given: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="write nothing; fail where a table is not up to date")
    options.add_argument("--root", type=Path, default=ROOT, help="of the project (default: this one)")
    args = options.parse_args(given)
    for document in sorted((args.root / "docs").glob("speed*.md")):
        text = document.read_text(encoding="utf-8")
        new = filled(text, args.root / "docs" / "results")
        if args.check and new != text:
            raise SystemExit(f"{document} is not what its results say: run python benchmarks/speed_document.py")
        document.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
