from __future__ import annotations

import json
from pathlib import Path

import pytest

TINY = ["task.n_train=40", "task.n_eval=8", "training.n_updates=2", "training.n_threads=1", "training.device=cpu"]


@pytest.mark.slow
def test_runs_are_compared_shown_written_and_shown_again(run, tmp_path: Path) -> None:
    for name, recipe in (("base", "digits/transformer"), ("other", "digits/universal")):
        settings = [*TINY, "decoding.max_length=6", "--run-dir", tmp_path / name]
        assert run("train", recipe, *settings).code == 0
    base, other, rows = tmp_path / "base", tmp_path / "other", tmp_path / "rows.jsonl"
    outcome = run("compare", base, other, "--split", "long", "--samples", 200, "--seed", 3, "--jsonl", rows)
    assert outcome.code == 0
    assert "base, long: 8 outputs decoded in " in outcome.err
    assert "no difference shown" in " ".join(outcome.out.split())
    assert "200 bootstrap samples" in outcome.out
    written = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert [row["system"] for row in written] == ["base", "other"]
    assert written[0]["bootstrap"] == {"n_samples": 200, "seed": 3, "level": 0.95}
    assert json.loads(run("compare", rows, "--json").out) == written
    refused = run("compare", rows, "--metric", "chrf", "--beam", 2)
    assert refused.code == 2
    assert "has no effect on rows of an earlier comparison" in " ".join(refused.err.split())
    shown = run("compare", rows, "--markdown").out.splitlines()
    assert [line for line in shown if line.startswith("| long | other | 8 |")]
    assert [line for line in shown if line.startswith("| other | 1 | ")]
    kept = run("compare", base, other, "--split", "long", "--metric", "chrf", "--max-examples", 8)
    assert "other, long: 8 outputs kept from before in " in kept.err
    averaged = run("compare", base, other, "--split", "long", "--checkpoint", "last:1", "--samples", 100)
    assert f"\n{base}: average-last-1: the mean of update-000002" in averaged.err
    assert "chrf: nrefs:1|" in kept.out


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["."], 2, "it is not a run"),
        (["gone.jsonl", "--metric", "bleu"], 2, "gone.jsonl: no such file"),
        ([], 2, "Missing argument"),
        (
            ["sweep.yaml"],
            2,
            "sweep.yaml: is a sweep, not a recipe: ostinato sweep sweep.yaml, ostinato table sweep.yaml",
        ),
        (["mine.yaml"], 2, "mine.yaml: is no run directory or file of predictions"),
        (["a.jsonl", "a.jsonl", "--beam", "4", "--fresh"], 2, "--beam --fresh: is for runs, and these are files"),
        ([".", "--match", "depth"], 2, "'depth' is not one of 'perplexity', 'loss'"),
        ([".", "--match", "perplexity", "--split", "dev"], 2, "--split: cannot go with --match perplexity"),
        ([".", "--match", "loss", "--samples", "900"], 2, "--samples: cannot go with --match loss"),
        ([".", "--match", "loss", "--split", "dev", "--split", "test"], 2, "takes one split and one metric"),
        ([".", "--points", "3"], 2, "--points: is for --match loss"),
        (["gone", "--match", "perplexity"], 2, "there is no such directory"),
        (["gone", "--samples", "0"], 2, "Invalid value for '--samples'"),
        (["gone", "--seed", "-5"], 2, "Invalid value for '--seed'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text("recipe: digits/transformer\narms: [{name: a}]\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("base: digits/transformer\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"prediction": "1", "reference": "1"}\n', encoding="utf-8")
    outcome = run("compare", *arguments)
    assert outcome.code == code
    assert expected in " ".join(outcome.err.split())
