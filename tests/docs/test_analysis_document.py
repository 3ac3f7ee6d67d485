"""What the document of analyses shows is what there is."""

from __future__ import annotations

from documents import ROOT, rows

from ostinato.analysis.studies import STUDIES

DOCUMENT = ROOT / "docs" / "analysis.md"


def test_every_analysis_has_its_row() -> None:
    named = [row[0].strip("`") for row in rows(DOCUMENT)[1:]]
    assert sorted(named) == sorted(study.name for study in STUDIES)
