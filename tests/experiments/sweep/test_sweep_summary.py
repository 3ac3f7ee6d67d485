from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ostinato.errors import DataError
from ostinato.experiments.sweep import summary
from ostinato.experiments.sweep.summary import (
    difference_table,
    flat_table,
    number_text,
    seed_difference,
    summarise,
    summary_notes,
    summary_table,
)


def row(arm: str, seed: int, values: dict[str, float], **changes: Any) -> dict[str, Any]:
    return {
        "sweep": "s",
        "arm": arm,
        "seed": seed,
        "recipe": f"r/{arm}",
        "parameters": 1000,
        "macs": 2_500_000,
        "macs_lengths": [10, 12],
        "checkpoint": "best of dev loss",
        "values": values,
    } | changes


ROWS = [
    row("a", 1, {"score": 0.5, "time": 10.0}),
    row("a", 2, {"score": 0.7, "time": 12.0}),
    row("a", 3, {"score": 0.9}),
    row("b", 2, {"score": 0.8}),
    row("b", 3, {"score": 0.8}),
    row("b", 9, {"score": 0.2}),
]


def test_an_arm_has_mean_deviation_and_number_over_its_seeds_and_pairs_only_with_the_same_seeds() -> None:
    first, second = summarise(ROWS)
    assert first["seeds"] == [1, 2, 3]
    assert first["values"]["score"]["mean"] == pytest.approx(0.7)
    assert first["values"]["score"]["sd"] == pytest.approx(0.2)
    assert first["values"]["time"]["n"] == 2
    assert first["values"]["score"]["difference"] is None
    found = second["values"]["score"]
    assert (found["mean"], found["n"]) == (pytest.approx(0.6), 3)
    assert found["difference"]["n"] == 2
    assert found["difference"]["value"] == pytest.approx(((0.8 - 0.7) + (0.8 - 0.9)) / 2)
    assert found["difference"]["verdict"] == "no difference shown"
    assert "time" not in second["values"]


def test_names_of_numbers_are_looked_for_once_and_not_for_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    names, calls = summary._names, list[int]()
    monkeypatch.setattr(summary, "_names", lambda lines: calls.append(len(lines)) or names(lines))
    assert len(summary_notes(summarise(ROWS))) == 1
    assert calls == [2]


def test_differences_of_seeds_have_students_interval() -> None:
    pairs = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    found = seed_difference(pairs)
    error = np.std(pairs, ddof=1) / np.sqrt(len(pairs))
    assert found["value"] == pytest.approx(0.45)
    # 97.5 % of Student's t with seven degrees of freedom lie below 2.3646.
    assert (found["low"], found["high"]) == pytest.approx((0.45 - 2.3646 * error, 0.45 + 2.3646 * error), abs=1e-4)
    assert found["verdict"] == "higher"
    assert seed_difference([-value for value in pairs])["verdict"] == "lower"
    assert seed_difference([0.1, -0.1] * 4)["verdict"] == "no difference shown"
    for equal in ([0.25], [0.25] * 5):
        assert seed_difference(equal) == {
            "value": 0.25,
            "low": None,
            "high": None,
            "n": len(equal),
            "verdict": "no spread",
        }


@pytest.mark.slow
def test_verdicts_on_equal_arms_are_wrong_in_one_case_of_twenty() -> None:
    drawn = np.random.default_rng(0).normal(size=(2000, 6))
    wrong = sum(seed_difference(list(pairs))["verdict"] in ("higher", "lower") for pairs in drawn) / len(drawn)
    assert wrong == pytest.approx(0.05, abs=0.015)


def test_the_table_has_one_line_an_arm_and_names_the_checkpoint() -> None:
    lines = summarise(ROWS)
    columns, body = summary_table(lines)
    assert columns == ["arm", "seeds", "parameters", "M MACs (10 to 12 tokens)", "checkpoint", "score", "time"]
    assert body[0] == ["a", 3, 1000, 2.5, "best of dev loss", "0.7 ± 0.2", "11 ± 1.414 (n 2)"]
    assert body[1][-1] == ""
    table = difference_table(lines)
    assert table is not None
    assert table[0] == ["difference to a", "score"]
    (line,) = table[1]
    assert str(line[1]).endswith("[-1.271, 1.271]")
    assert difference_table(lines[:1]) is None


def test_csv_has_a_column_for_every_number() -> None:
    columns, body = flat_table(summarise(ROWS))
    line = dict(zip(columns, body[1], strict=True))
    assert line["score: mean"] == pytest.approx(0.6)
    assert line["score: difference n"] == 2
    assert line["time: mean"] is None
    assert line["recipe"] == "r/b"


def test_notes_say_how_intervals_were_made_and_which_checkpoint_a_measure_is_of() -> None:
    rows = [row("a", 1, {"score": 0.5}, checkpoints={"score": "last"}), row("b", 1, {"score": 0.5})]
    notes = summary_notes(summarise(rows))
    assert notes[0] == "score: of the checkpoint last"
    assert notes[1].startswith("Intervals: 95 %, Student's t over seeds, paired")
    assert summary_notes(summarise(ROWS[:3])) == []


def test_notes_say_how_many_differences_have_an_interval() -> None:
    scores = {"a": (0.5, 0.6), "b": (0.7, 0.9), "c": (0.1, 0.3), "d": (0.5,)}  # the last has one seed, and no interval
    rows = [
        row(arm, seed, {"score": score, "time": 10 * score})
        for arm, own in scores.items()
        for seed, score in enumerate(own)
    ]
    assert summary_notes(summarise(rows))[-1] == (
        "4 differences were tested; of equal arms, about 1 in 20 intervals excludes 0 by chance."
    )


def test_rows_of_several_sweeps_are_not_one_table() -> None:
    with pytest.raises(DataError, match="rows of one sweep"):
        summarise([*ROWS, row("a", 4, {}, sweep="other")])


def test_numbers_have_four_digits() -> None:
    assert [number_text(value) for value in (0.123456, 12345.6, -3e-5)] == ["0.1235", "12,346", "-3e-05"]
    assert number_text(0.5, signed=True) == "+0.5"
