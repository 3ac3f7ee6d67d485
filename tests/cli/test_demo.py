"""`ostinato demo` with runs that are made up: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demonstration_rows import rows_of, some_costs
from ostinato.experiments import demonstration as demo


def test_the_command_prints_one_table_what_stopping_saves_and_what_to_try_next(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    asked: list[list[int]] = []

    def trained(sweep: Any, store: Path, **_: Any) -> list[dict[str, Any]]:
        asked.append(sweep.seeds)
        (store / "sweeps" / sweep.name).mkdir(parents=True, exist_ok=True)
        return rows_of(1)

    monkeypatch.setattr("ostinato.experiments.sweep.schedule.run_sweep", trained)
    monkeypatch.setattr(demo, "committed_rows", lambda: [*rows_of(1), *rows_of(2, 0.6)])
    monkeypatch.setattr(demo, "costs", lambda *_: some_costs())
    text = " ".join(run("demo", "--run-dir", tmp_path / "my demo").out.split())
    assert f"ostinato evaluate '{tmp_path / 'my demo'}/" in text
    assert f"ostinato analyze '{tmp_path / 'my demo'}/" in text
    assert asked == [[demo.SEED]]
    assert "looped, a round a bit 1,000 50.0 (55.0 ± 7.1)" in text
    assert "48 rounds for all: 90.0 % right, 2.0 M MACs and 2.00 ms a sequence" in text
    assert "every sequence stops by itself (threshold 0.9999): 89.5 % right, 4.0 M MACs and 4.00 ms" in text
    assert "every token stops by itself, no threshold is within a point of that" in text
    assert "ostinato evaluate " in text
    monkeypatch.setattr("ostinato.analysis.drawing.can_draw", lambda: False)
    outcome = run("demo", "--run-dir", tmp_path)
    text = " ".join(outcome.out.split())
    assert outcome.code == 0
    assert "no figure was drawn: figures need matplotlib: pip install" in text
    assert "ostinato evaluate " in text
    found = json.loads(run("demo", "--run-dir", tmp_path, "--json").out)
    assert [len(found[part]) for part in ("here", "committed", "costs")] == [4, 8, 5]
