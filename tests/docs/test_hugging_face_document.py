from __future__ import annotations

import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks, commands

pytest.importorskip("transformers", reason="needs the extra hf")
sys.path.append(str(ROOT / "tests" / "hf"))

import runs
import tiny

from ostinato.cli import main

DOCUMENT = ROOT / "docs" / "hugging-face.md"
_LLAMA = (
    "model.decoder={n_steps: 2, norm: {kind: rms}, self_attention: {n_heads: 2, bias: false, share: all}, "
    "ffn: {d_ff: 24, activation: swiglu, bias: false, share: all}}"
)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runs.make_run("looped", tmp_path / "runs" / "mine", _LLAMA)
    (tmp_path / "models").mkdir()
    tiny.save("gpt2", tmp_path / "models" / "gpt2")
    (tmp_path / "text.txt").write_text("w7 w8 w9\nw10 w11\n", encoding="utf-8")
    for command in commands(DOCUMENT):
        with pytest.raises(SystemExit) as end:
            main(command.arguments)
        assert end.value.code in (0, None), command
    assert "perplexity" in capsys.readouterr().out
    (code,) = blocks(DOCUMENT, "python")
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert (tmp_path / "models" / "plain" / "config.json").is_file()
