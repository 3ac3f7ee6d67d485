from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from documents import README, ROOT, blocks, links, prose
from torch import nn

import ostinato as o
from ostinato.config.load import check_settings

DOCUMENT = ROOT / "docs" / "python.md"


@pytest.mark.slow
def test_the_program_builds_trains_saves_loads_and_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(DOCUMENT, "python")
    assert sum(1 for line in code.splitlines() if line) <= 40
    assert "from ostinato" not in code, "no deep import is needed"
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert float(capsys.readouterr().out) > 0.5
    assert sorted(path.name for path in (tmp_path / "reverse").iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("attention", "before"), [("dense", "hook its maps"), ("experts", "with experts"), ("head_experts", "inside heads")]
)
def test_the_maps_of_attention_that_can_be_hooked_are_those_that_are_named(attention: str, before: str) -> None:
    decoder = {"n_steps": 1, "self_attention": {"kind": attention, "n_heads": 2}, "ffn": {"d_ff": 16}}
    model = o.build_model(check_settings({"d_model": 8, "vocab_size": 9, "decoder": decoder}, o.LanguageModelConfig))
    (module,) = model.banks.self_attention.values()
    said = re.search(rf"{before} (`\w+`(?:\sand\s`\w+`)?)", prose(DOCUMENT))
    assert said
    maps = {name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    assert maps == {*re.findall(r"\w+(?=`)", said[1])}


def test_every_part_of_the_loss_is_named_and_can_be_made_as_the_page_says() -> None:
    section = prose(DOCUMENT).split("## What the loss is made of")[1].split("\n## ")[0]
    parts = {*inspect.signature(o.LanguageModel.loss).parameters} - {"self", "batch"}
    assert {*re.findall(r"`(\w+)=", section)} == parts
    for value in re.findall(r"`\w+=(o\.[^`]+)`", section):
        eval(value, {"o": o})


def test_the_readme_leads_there() -> None:
    assert "docs/python.md" in links(README)
