from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ostinato.errors import DataError
from ostinato.evaluation.timing import Effort, Stopwatch
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.workloads import Workload
from ostinato.tasks.recipes import load_recipe

CPU = torch.device("cpu")
TINY = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_steps": 2}


class _Clock:
    """A clock on which every call takes as many seconds as were called before it."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        call = self.readings // 2
        return call * (call + 1) / 2


def _timer() -> Timer:
    return Timer("cpu", stopwatch=Stopwatch(CPU, _Clock(), dict))


@pytest.mark.slow
def test_the_decoding_study_runs_from_the_command_line(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script("decoding_speed").main(["--quick", "--threads", "1", "--out", str(tmp_path / "docs" / "speed")])
    said = capsys.readouterr().out
    assert "decoding, batch 3, beam 5: 2 rounds, about" in said
    rows = [json.loads(line) for line in (tmp_path / "docs" / "speed.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 5 + 2 * 2
    assert {row["environment"]["threads"] for row in rows} == {1}
    text = (tmp_path / "docs" / "speed.md").read_text()
    assert said.endswith(text + "\n")
    assert text.count("| one-wide |") == 2


@pytest.mark.slow
def test_the_update_time_study_runs_from_the_command_line(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "update"
    script("update_time_vs_depth").main(["--quick", "--recipe", "lm/transformer", "--figure", "--out", str(out)])
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert [row["stacks"]["decoder"]["n_steps"] for row in rows] == [1, 2, 3]
    text = out.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert "R^2 = " in text
    assert out.with_suffix(".png").stat().st_size > 1000
    assert out.with_suffix(".svg").exists()


def test_a_figure_needs_a_place(script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script("update_time_vs_depth").main(["--quick", "--figure"])
    assert stop.value.code == 2
    assert "--figure needs --out" in capsys.readouterr().err


def test_rounds_are_as_many_as_asked_for_or_fill_the_minutes(script: Callable[[str], ModuleType]) -> None:
    arguments, effort = script("decoding_speed").arguments, script("common").effort
    study = script("speed_studies").decoding_study(
        [1, 64], 5, 20, 20, effort=effort(arguments(["--minutes", "2"]), most=15)
    )
    assert script("common").plan(study) == "4 workloads in 2 minutes, unless 6 rounds of each take longer"
    assert effort(arguments(["--rounds", "7"]), most=15).n_rounds(1e9) == 7
    planned = effort(arguments(["--minutes", "2"]), most=15)
    assert (planned.n_rounds(10.0), planned.n_rounds(0.1), planned.n_rounds(1000.0)) == (11, 15, 6)


@pytest.mark.slow
def test_a_study_times_its_groups_one_after_the_other_and_compares_with_the_first_arm(
    script: Callable[[str], ModuleType],
) -> None:
    studies = script("speed_studies")
    study = studies.decoding_study([1, 2], 2, 3, 4, vocabulary=30, effort=Effort(rounds=2), size=studies.Size(**TINY))
    plans: list[str] = []
    rows = [json.loads(json.dumps(r)) for r in study.run(_timer(), lambda plan: plans.append(str(plan)))]
    variants = ["baseline", "no-enc", "no-dec", "shared-enc-no-dec", "one-wide"]
    assert [(r["group"], r["workload"]["batch_size"], r["name"]) for r in rows] == [
        *[("encoder-decoder", batch, name) for batch in (1, 2) for name in variants],
        *[("decoder-only", batch, name) for batch in (1, 2) for name in ("baseline", "wide shared-dec")],
    ]
    assert len(plans) == 4
    assert {r["speed"]["baseline"] for r in rows} == {"baseline"}
    one_wide = rows[4]
    assert one_wide["recipe"] == "one-wide-ffn/base/one-wide"
    assert one_wide["stacks"] == {"encoder": {"n_steps": 2, "d_ff": 4 * 24}, "decoder": {"n_steps": 2, "d_ff": None}}
    assert rows[11]["stacks"] == {"decoder": {"n_steps": 2, "d_ff": 2 * 24}}
    assert rows[0]["macs"]["per_generated_token"] > rows[2]["macs"]["per_generated_token"]
    assert one_wide["macs"]["per_source_token"] > rows[0]["macs"]["per_source_token"]
    ratio = [b / a for a, b in zip(one_wide["seconds"], rows[0]["seconds"], strict=True)]
    assert one_wide["speed"]["value"] == pytest.approx(sum(ratio) / 2)
    again = load_recipe(one_wide["recipe"], one_wide["overrides"])
    assert again.model.d_model == 16


def test_a_study_in_the_papers_own_size_is_transformer_base(script: Callable[[str], ModuleType]) -> None:
    studies = script("speed_studies")
    study = studies.decoding_study([1], 5, 20, 20)
    models = {
        (group.name, variant.name): load_recipe(variant.recipe, variant.overrides).model
        for group in study.groups
        for variant in group.variants
    }
    assert models["encoder-decoder", "baseline"] == load_recipe("one-wide-ffn/base/baseline").model
    wide = models["decoder-only", "wide shared-dec"]
    assert wide.d_model == 512
    (stack,) = wide.stacks().values()
    assert (stack.n_steps, stack.ffn.d_ff, stack.self_attention.n_heads) == (12, 12 * 2048, 8)


def test_the_time_of_a_study_is_shared_by_the_workloads_that_are_left(script: Callable[[str], ModuleType]) -> None:
    studies = script("speed_studies")
    # A real clock: with no time at all every workload still gets its fewest rounds, and nothing more.
    work = tuple(Workload("forward", b, 3, 4) for b in (1, 2))
    variants = (studies.Variant("a", "digits/transformer"), studies.Variant("b", "digits/universal"))
    none = studies.SpeedStudy("s", (studies.Group("g", variants, work),), 30, Effort(rounds=9, least=2, seconds=0.0))
    assert [r["n"] for r in none.run(Timer("cpu"))] == [2, 2, 2, 2]


def test_update_times_of_a_family_lie_on_a_line_against_depth(script: Callable[[str], ModuleType]) -> None:
    studies = script("speed_studies")
    lines = script("depth_line")
    study = studies.depth_study(
        "lm/transformer",
        [1, 2, 3, 4, 50],
        batch_size=2,
        length=6,
        vocabulary=30,
        effort=Effort(rounds=2),
        overrides=studies.Size(**TINY).overrides(("decoder",)),
    )
    (group,) = study.groups
    assert [variant.name.split(",")[0] for variant in group.variants] == ["n_steps 1", "n_steps 2", "n_steps 3"]
    rows = list(study.run(_timer()))
    line = lines.depth_line(rows)
    # Calls 4, 6, 5 and 8, 7, 9: the rounds begin with the first and the second arm.
    assert [r["seconds"] for r in rows] == [[4.0, 8.0], [6.0, 7.0], [5.0, 9.0]]
    assert (line.slope, line.intercept) == pytest.approx((0.5, 5.5))
    largest = max(r["parameters"] for r in rows)
    assert largest - min(r["parameters"] for r in rows) < 0.01 * largest
    text = lines.line_text(line, rows)
    assert text.startswith("update time = 5500.0 ms + 500.00 ms per step")
    assert "from 1 to 3 steps the time is 1.17 times" in text


def test_a_line_needs_two_depths_and_rows_of_its_study(script: Callable[[str], ModuleType]) -> None:
    studies = script("speed_studies")
    lines = script("depth_line")
    with pytest.raises(DataError, match="1 arms of these depths"):
        studies.depth_study(
            "lm/transformer", [2], 2, 6, vocabulary=30, overrides=studies.Size(**TINY).overrides(("decoder",))
        )
    with pytest.raises(DataError, match="not all of the study update_time_vs_depth"):
        lines.depth_line([{"study": "decoding_speed"}])
