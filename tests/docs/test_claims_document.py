"""The claim that the document shows is one that `ostinato reproduce` would run."""

from __future__ import annotations

from pathlib import Path

from documents import ROOT, blocks

from ostinato.experiments.claims.design import check_alike, check_tuning, named_by, named_part, source_sweep
from ostinato.experiments.claims.files import load_claim


def test_the_arms_of_the_example_are_alike_and_tuned_on_another_split(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "claims.md", "yaml")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    claim = load_claim(tmp_path / "mine.yaml").config
    source, design = claim.source, claim.design
    assert source.kind == "sweep"
    assert design is not None
    assert design.tuning is not None
    sweep = source_sweep(source, None)
    part, _ = named_part(sweep, source, named_by([*claim.expect, *claim.controls]))
    check_alike(part, design)
    check_tuning(sweep, source, design.tuning, claim.expect)
