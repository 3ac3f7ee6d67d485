"""What the document of analyses shows is what there is."""

from __future__ import annotations

import re

from documents import ROOT, blocks, rows

from ostinato.analysis.studies import STUDIES

DOCUMENT = ROOT / "docs" / "analysis.md"


def test_the_python_examples_run() -> None:
    shown: dict[str, object] = {}
    for code in blocks(DOCUMENT, "python"):
        exec(compile(code, str(DOCUMENT), "exec"), shown)  # they assert what they say of the measures
    assert {"linear_cka", "Depths"} <= shown.keys()


def test_every_analysis_has_its_row() -> None:
    named = [row[0].strip("`") for row in rows(DOCUMENT)[1:]]
    assert sorted(named) == sorted(study.name for study in STUDIES)


def test_what_needs_steps_names_something_that_only_models_of_steps_have() -> None:
    of = {row[0].strip("`"): row[2] for row in rows(DOCUMENT)[1:]}
    for study in STUDIES:
        if study.needs_steps:
            assert re.search("of steps|stacks|tokens|attention|routers?|feed-forwards", of[study.name]), study.name
