from __future__ import annotations

from typing import Any

from ostinato.experiments.compare.paired_tables import cost_table, notes, score_table


def estimate(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def row(system: str, split: str, *, verdict: str | None = None, beam: int = 5, seconds: float = 4.0) -> dict[str, Any]:
    score = {**estimate(31.234, 29.9, 32.5), "signature": "nrefs:1", "difference": None, "verdict": verdict}
    match = {**estimate(0.25, 0.2, 0.3), "signature": None, "difference": None, "verdict": verdict}
    if verdict is not None:
        score["difference"], match["difference"] = estimate(-1.5, -2.25, -0.5), estimate(-0.125, -0.25, 0.0)
    return {
        "split": split,
        "system": system,
        "reference": "base",
        "n": 1000,
        "metrics": {"bleu": score, "exact_match": match},
        "bootstrap": {"n_samples": 1000, "seed": 12345, "level": 0.95},
        "seed": 1,
        "parameters": 2_363_904,
        "macs": {"source_length": 16, "target_length": 18, "total": 38_338_560, "per_generated_token": 1_462_272},
        "n_updates": 2000,
        "training_seconds": 1462.7,
        "training_tokens_per_second": 3366.3,
        "decoding": {
            "seconds": seconds,
            "n_generated": 1000,
            "device": "cpu",
            "n_threads": 2,
            "settings": {"beam": beam},
        },
    }


def from_file(system: str) -> dict[str, Any]:
    unknown = ("seed", "parameters", "macs", "n_updates", "training_seconds", "training_tokens_per_second", "decoding")
    return row(system, "test", verdict="higher") | dict.fromkeys(unknown)


def test_scores_are_shown_with_intervals_differences_and_verdicts() -> None:
    columns, lines = score_table([row("base", "test"), row("wide", "test", verdict="lower")])
    assert columns == ["split", "system", "n", "bleu", "bleu - reference", "exact_match", "exact_match - reference"]
    assert lines == [
        ["test", "base", 1000, "31.23 [29.90, 32.50]", "", "0.2500 [0.2000, 0.3000]", ""],
        [
            *("test", "wide", 1000, "31.23 [29.90, 32.50]", "-1.50 [-2.25, -0.50] lower"),
            *("0.2500 [0.2000, 0.3000]", "-0.1250 [-0.2500, +0.0000] lower"),
        ],
    ]


def test_one_system_has_no_columns_of_differences() -> None:
    columns, lines = score_table([row("base", "test"), row("base", "test_2017")])
    assert columns == ["split", "system", "n", "bleu", "exact_match"]
    assert lines[1] == ["test_2017", "base", 1000, "31.23 [29.90, 32.50]", "0.2500 [0.2000, 0.3000]"]


def test_costs_are_one_line_a_system_with_the_speed_over_all_splits() -> None:
    rows = [row("base", "test", seconds=1), row("base", "test_2017", seconds=4), from_file("other")]
    columns, lines = cost_table(rows)
    assert dict(zip(columns, lines[0], strict=True)) == {
        "system": "base",
        "seed": 1,
        "parameters": 2_363_904,
        "M MACs": 38.33856,
        "M MACs / generated token": 1.462272,
        "updates": 2000,
        "training s": 1463,
        "training tokens/s": 3366,
        "decoding tokens/s": 400,
    }
    assert lines[1] == ["other", *[None] * 8]


def test_macs_of_tokens_that_halt_are_a_mean_over_sentences_beside_those_of_full_depth() -> None:
    rows = [row("halting", "test"), row("halting", "longer"), from_file("other")]
    for found, n, realised in ((rows[0], 1000, 20_000_000), (rows[1], 3000, 28_000_000)):
        found["n"] = n
        found["macs"] |= {"total": realised, "full_depth": 38_338_560, "depth": {"encoder": 2.5}}
    columns, lines = cost_table(rows)
    assert columns[3:6] == ["M MACs", "M MACs, full depth", "M MACs / generated token"]
    assert lines[0][3:6] == [26.0, 38.33856, 1.462272]
    assert lines[1][3:6] == [None] * 3
    said = next(line for line in notes(rows) if line.startswith("MACs: "))
    assert said == (
        "MACs: one forward pass over 16 source and 18 target tokens; where tokens halt, at the rounds that those of "
        "the compared sentences ran on average."
    )


def test_notes_say_how_the_numbers_were_made() -> None:
    rows = [row("base", "test"), row("wide", "test", verdict="lower")]
    lines = notes(rows)
    assert lines == [
        "Intervals: 95% of 1,000 bootstrap samples of the test sentences, seed 12345; they do not cover how scores "
        "vary with the training seed.",
        "Reference: base. 2 differences were tested; of equal systems, about 1 in 20 intervals excludes 0 by chance.",
        "MACs: one forward pass over 16 source and 18 target tokens.",
        "Decoded on: cpu, CPU threads: 2.",
        "bleu: nrefs:1",
    ]
    assert any("different settings" in line for line in notes([*rows, row("greedy", "test", beam=1)]))
    assert [line.partition(":")[0] for line in notes([from_file("one")])] == ["Intervals", "Reference", "bleu"]
    assert notes([]) == []
