"""What the document of the design counts up is all there is."""

from __future__ import annotations

import re

from documents import ROOT

from ostinato.nn import Stack

TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "ostinato"


def test_every_context_variable_is_named() -> None:
    (paragraph,) = re.findall(r"^\w+ context variables are left.+?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    named = re.findall(r"`(kernels/\w+\.py)`", paragraph)
    files = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"= ContextVar\(", path.read_text(encoding="utf-8"))
    }
    assert sorted(named) == sorted(files)


def test_everything_that_can_be_requested_of_a_pass_is_named() -> None:
    described = re.findall(r"request: captures to return: (.+?)execution:", str(Stack.__call__.__doc__), re.DOTALL)
    (sentence,) = re.findall(r"`request=` may name(.+?);", TEXT, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(re.findall(r'"(\w+)"', described[0]))
