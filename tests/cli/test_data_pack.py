from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))


def test_files_are_packed_once_and_said_where(run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"one two {name}\nthree\n", encoding="utf-8")
    words = ["data", "pack", "lm/transformer", f"data.train={tmp_path}/*.txt", "data.tokenizer.kind=words"]
    words += ["data.tokenizer.vocab_size=null"]
    first = run(*words)
    assert first.code == 0
    said, last = first.out.strip().splitlines()
    assert said == "tokenised 100 % of 0 MB, 0:00 left"
    assert last.startswith("4 texts, 12 tokens: ")
    folder = Path(last.partition(": ")[2])
    assert json.loads((folder / "pack.json").read_text(encoding="utf-8"))["n_texts"] == 4
    assert run(*words, "--processes", 2).out.strip().splitlines() == [last]
    found = json.loads(run(*words, "--json").out)
    assert (found["n"], found["n_tokens"], found["folder"]) == (4, 12, str(folder))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["data.train=nowhere/*.txt"], "data.train is 'nowhere/*.txt': no file matches this pattern"),
        (["data.train={bad}"], "bad.txt, line 2: not UTF-8 at byte 1 of the line"),
        (["data.train={bad}", "--processes", "0"], "Invalid value for '--processes'"),
        (["data.train={bad}", "data.block_attention=text", "data.block_length=null"], "data.block_attention is 'text'"),
    ],
)
def test_what_cannot_be_packed_is_one_line(run, tmp_path: Path, given: list[str], said: str) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"a\n\xff\n")
    outcome = run("data", "pack", "lm/transformer", *(word.replace("{bad}", str(bad)) for word in given))
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_a_task_without_files_of_ones_own_says_what_packs_are_for(run) -> None:
    outcome = run("data", "pack", "scan/universal")
    assert outcome.code == 2
    assert "is for the tasks files and translation, and for data.train of a published task" in outcome.err
