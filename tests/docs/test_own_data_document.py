"""The example of a tokenizer of another library works as the document of own data shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from documents import ROOT, blocks, commands
from tokenizers import decoders, models, pre_tokenizers, trainers

from ostinato.cli import main

DOCUMENT = ROOT / "docs" / "own-data.md"
SMALL = [
    *("model.d_model=8", "model.encoder.n_steps=1", "model.decoder.n_steps=1", "training.n_updates=2"),
    *("training.schedule.warmup=1", "training.evaluate_every=2", "training.save_every=2", "training.device=cpu"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a tokenizer.json of the tokenizers library and two files of pairs."""
    texts = ["good morning to all", "guten Morgen allerseits"]
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=["<s>"], initial_alphabet=alphabet)
    model.train_from_iterator(texts, trainer)
    model.save(str(tmp_path / "tokenizer.json"))
    for name in ("train", "dev"):
        row = {"source": texts[0], "target": texts[1]}
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 2, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_code_gives_the_file_s_own_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (block for block in blocks(DOCUMENT, "python") if "tokenizer.json" in block)
    shown: dict[str, object] = {}
    exec(compile(code, str(DOCUMENT), "exec"), shown)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert shown["theirs"] == theirs.encode("good morning", add_special_tokens=False).ids
    assert capsys.readouterr().out == "good morning\n"


def test_the_command_trains_with_the_file(folder: Path) -> None:
    (command,) = (one for one in commands(DOCUMENT) if "tokenizer.json" in str(one))
    with pytest.raises(SystemExit) as ended:
        main([*command.arguments, *SMALL, "--run-dir", str(folder / "run")])
    assert not ended.value.code
    kept = json.loads((folder / "run" / "tokenizers" / "joint.json").read_text(encoding="utf-8"))
    given = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert kept["model"]["model"]["vocab"] == given["model"]["vocab"]
