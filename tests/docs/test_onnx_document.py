from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, blocks, commands

pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
sys.path.append(str(ROOT / "tests" / "hf"))

import runs

from ostinato.cli import main

DOCUMENT = ROOT / "docs" / "onnx.md"


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dev.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in runs.TEXTS), encoding="utf-8")
    given = f"data.train={tmp_path}/dev.jsonl", f"data.dev={tmp_path}/dev.jsonl"
    runs.make_run("looped", tmp_path / "runs" / "mine", *given)
    for command in commands(DOCUMENT):
        with pytest.raises(SystemExit) as end:
            main(command.arguments)
        assert end.value.code in (0, None), command
    (code,) = blocks(DOCUMENT, "python")
    found: dict[str, Any] = {}
    exec(compile(code, str(DOCUMENT), "exec"), found)
    assert found["logits"].shape[:2] == (1, 2)
