"""What the page of converted language models says beside differences of rows: shares, and lines between arms."""

from __future__ import annotations

import json
from statistics import mean

import numpy as np
from documents import ROOT

RESULTS = ROOT / "docs" / "results"
SETS = ("3 sets", "2 sets", "1 set")


def arms() -> dict[str, tuple[float, float]]:
    """Return parameters and the mean of bits per byte over seeds, by arm."""
    rows = [json.loads(line) for line in (RESULTS / "converted-language-models.jsonl").read_text().splitlines()]
    found = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        values = [row["values"] for row in rows if row["arm"] == arm]
        found[arm] = values[0]["parameters"], mean(one["bits_per_byte"] for one in values)
    return found


def test_what_deltas_mend_and_what_as_many_parameters_of_sets_do() -> None:
    found = arms()
    line = sorted([found["dense, 60 updates more"], *(found[f"stepwise, {sets}"] for sets in SETS)])
    mended, added, behind = [], [], []
    for sets in SETS:
        (n_plain, plain), (n, deltas) = found[f"average, {sets}"], found[f"average and deltas, {sets}"]
        mended.append(round(100 * (plain - deltas) / (plain - found["dense, 60 updates more"][1])))
        added.append(round(100 * (n / n_plain - 1)))
        behind.append(f"{deltas - np.interp(n, *zip(*line, strict=True)):.3f}")
    page = " ".join((RESULTS / "converted-language-models.md").read_text().split())
    for words in (
        "{}, {} and {} %, for ".format(*mended) + "{}, {} and {} % more parameters".format(*added),
        "they are worse everywhere, by {}, {} and {}".format(*behind),
    ):
        assert words in page
