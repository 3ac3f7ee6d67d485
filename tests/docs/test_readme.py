from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from documents import README, Command, blocks, commands

from ostinato.cli import main

TINY = [
    "model.d_model=16",
    "model.decoder.ffn.d_ff=16",
    "data.tokens_per_batch=256",
    "training.n_updates=2",
    "training.n_threads=1",
    "training.device=cpu",
    "training.selection.max_examples=4",
    "decoding.max_length=8",
    "decoding.max_length_ratio=0",
    "evaluation.max_examples=4",
]
UPSTREAM = Path(__file__).parents[3] / "shared" / "data" / "upstream"


def tiny(name: str) -> list[str]:
    """Return what makes a recipe tiny."""
    short = ["task.n_train=60", "task.n_eval=8", "task.max_length=8", "task.long_max_length=12"]
    return [
        *TINY,
        *(short if name.startswith("algorithmic/") else []),
        *([] if name.startswith("lm/") else ["model.encoder.ffn.d_ff=16"]),
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with files of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OSTINATO_MIRROR", raising=False)
    for name in ("train", "dev"):
        pairs = [{"source": f"jump {i} times", "target": f"times {i} jump"} for i in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs), encoding="utf-8")
        (tmp_path / f"{name}.txt").write_text("The cat sat.\nThe dog ran.\n", encoding="utf-8")
    return tmp_path


def adapted(command: Command) -> list[str] | None:
    """Return the arguments with tiny settings, None where the data that it needs is not here."""
    arguments = list(command.arguments)
    if arguments[0] == "train" and not arguments[1].startswith("runs/"):
        # Before the user's own settings, which win.
        arguments[2:2] = tiny(arguments[1])
    if "--mirror" in arguments:
        if not UPSTREAM.is_dir():
            return None
        arguments[arguments.index("--mirror") + 1] = str(UPSTREAM)
    return arguments


def test_the_python_example_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(README, "python")
    recipe = "algorithmic/reverse-universal"
    call = f'load_recipe("{recipe}", ['
    assert call in code
    names: dict[str, Any] = {"TINY": tiny(recipe)}
    exec(compile(code.replace(call, f"{call}*TINY, "), str(README), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == code.count("print(") == 3
    assert names["results"]["splits"]["long"]["n"] == names["run"].evaluate("long")["n"] == 4
    assert float(printed[0]) == names["results"]["splits"]["long"]["exact_match"]
    assert 0 <= float(printed[2]) <= 1
    assert sum(1 for line in code.splitlines() if line) <= 10


def test_the_tour_of_the_command_line_runs_from_top_to_bottom(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n_run = 0
    for command in commands(README):
        if (arguments := adapted(command)) is None:
            continue
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((command.stdin or "").encode())))
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        assert caught.value.code in (0, None), f"{command}\n{err}"
        if command.stdin:
            assert out.count("\n") == 1
        elif "--predictions" not in arguments:
            assert out.strip(), command
        n_run += 1
    assert n_run >= 15
    trained = {path.parent.name for path in (folder / "runs").glob("*/results.json")}
    assert trained == {"scan-length-universal", "deeper", "deeper-again", "mine", "lm-universal"}
    metrics = [(folder / "runs" / name / "metrics.jsonl").read_bytes() for name in ("deeper", "deeper-again")]
    assert metrics[0] == metrics[1]
    assert len((folder / "runs" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 4
