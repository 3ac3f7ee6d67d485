from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from documents import README, ROOT, blocks, links, rows

from serving import serving

DOCUMENT = ROOT / "docs" / "view.md"
RUN = ROOT / "tests" / "old_runs" / "trained" / "sparse"


def test_the_program_asks_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name, reason="the page needs the extra [view]: pip install 'ostinato[view]'")
    from ostinato.evaluation.loading import load
    from ostinato.viewer.opened import open_runs
    from ostinato.viewer.schema import Limits
    from ostinato.viewer.server import view_app

    (code,) = blocks(DOCUMENT, "python")
    opened = open_runs({"sparse": load(RUN, device="cpu")}, Limits())
    with serving(view_app(opened, Limits())) as address:
        exec(compile(code, str(DOCUMENT), "exec"), {"address": address, "run": "sparse", "text": "1 2"})
    opened["sparse"].close()
    first, second = capsys.readouterr().out.splitlines()
    assert 0 < float(first.split()[-1]) <= 1
    assert [token for token, _ in eval(second)] == ["1", "2", "<eos>"]


def test_the_document_names_every_panel_address_and_limit() -> None:
    from ostinato.cli.watch import watch
    from ostinato.viewer.schema import Limits

    script = (ROOT / "src" / "ostinato" / "viewer" / "page" / "view.js").read_text(encoding="utf-8")
    panels = re.findall(r'\["\w+", "([A-Z][^"]+)"\]', script)
    table = [row[0] for row in rows(DOCUMENT)]
    assert len(panels) == 9
    assert set(panels) <= set(table)
    text = DOCUMENT.read_text(encoding="utf-8")
    server = (ROOT / "src" / "ostinato" / "viewer" / "server.py").read_text(encoding="utf-8")
    for path in set(re.findall(r'"(/api/\w+)"', server)):
        assert f" {path}`" in text, path
    default = inspect.signature(watch).parameters["port"].default
    assert f"at port {default} " in text
    limits = Limits()
    shown = {limits.waiting: "64 may wait", limits.tokens: "256 tokens", limits.generated: "output 128"}
    shown |= {limits.known: "first 1,000 examples"}
    shown |= {limits.examples: "curve 200 examples", limits.seconds: "request 60 seconds", limits.body: "64 KiB"}
    for value, words in shown.items():
        number = int(re.findall(r"\d+", words.replace(",", ""))[0])
        assert value == number * (1024 if "KiB" in words else 1)
        assert words in text
    assert limits.rounds == 8
    assert "up to eight times those of the plan" in text


def test_it_is_found_and_its_pictures_are_there() -> None:
    assert "docs/view.md" in links(README)
    for name in re.findall(r"\]\((view/[\w-]+\.png)\)", DOCUMENT.read_text(encoding="utf-8")):
        assert Path(DOCUMENT.parent / name).read_bytes()[:4] == b"\x89PNG"
