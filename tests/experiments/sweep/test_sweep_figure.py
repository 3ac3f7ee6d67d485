from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostinato.analysis.drawing import check_figure
from ostinato.errors import ConfigError
from ostinato.experiments.sweep.figure import draw_sweep

pytest.importorskip("matplotlib")

ROWS = [
    {"arm": arm, "seed": seed, "parameters": 10 * size, "macs": size, "values": {"score": score, "size": float(size)}}
    for arm, size in (("alpha", 1), ("beta", 2))
    for seed, score in ((1, 0.2), (2, 0.4))
]


def test_a_figure_has_a_panel_a_measure_and_names_its_arms(tmp_path: Path) -> None:
    svg, png = draw_sweep(ROWS, tmp_path / "plot", title="a title")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    for words in ("alpha (n 2)", "beta (n 2)", "score", "size", "a title"):
        assert f"<!-- {words} -->" in text


@pytest.mark.parametrize("x", ["parameters", "size"])
def test_measures_are_drawn_against_a_figure_or_another_measure(tmp_path: Path, x: str) -> None:
    text = draw_sweep(ROWS, tmp_path / "plot", x=x, y=["score"])[0].read_text()
    assert f"<!-- {x} -->" in text


def test_names_that_the_rows_do_not_have_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        draw_sweep(ROWS, tmp_path / "plot", x="depth", y=["scor"])
    assert str(error.value).splitlines() == [
        "y is 'scor': must be one of score, size",
        "x is 'depth': must be one of parameters, macs, n_updates, training_seconds, seconds, seed, score, size",
    ]


def test_large_counts_are_drawn_in_the_units_of_the_table(tmp_path: Path) -> None:
    rows = [row | {"macs": row["macs"] * 10_000_000, "macs_lengths": [10, 12]} for row in ROWS]
    text = draw_sweep(rows, tmp_path / "plot", x="macs", y=["score"])[0].read_text()
    assert "<!-- MACs (10 to 12 tokens) -->" in text
    assert "<!-- 1e7 -->" not in text
    assert {"<!-- 10M -->", "<!-- 20M -->"} <= set(re.findall("<!-- [0-9.]+M? -->", text))
    assert "<!-- 0.400 -->" in text


def test_names_of_figures_may_have_dots(tmp_path: Path) -> None:
    for name, stem in (("rate 0.1", "rate 0.1"), ("figure.png", "figure"), ("data.json", "data")):
        assert check_figure(tmp_path / name) == (tmp_path / f"{stem}.svg", tmp_path / f"{stem}.png")


def test_a_figure_is_not_drawn_over_another_file(tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"plot\.png: is there already"):
        draw_sweep(ROWS, tmp_path / "plot")
    assert not (tmp_path / "plot.svg").exists()
    draw_sweep(ROWS, tmp_path / "plot", overwrite=True)
    (tmp_path / "plot.svg").unlink()
    (tmp_path / "plot.svg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"plot\.svg: is a link"):
        draw_sweep(ROWS, tmp_path / "plot", overwrite=True)
    assert not (tmp_path / "elsewhere").exists()


def test_an_arm_without_the_first_measure_is_named(tmp_path: Path) -> None:
    rows = [row | {"values": {"size": 1.0}} if row["arm"] == "beta" else row for row in ROWS]
    text = draw_sweep(rows, tmp_path / "plot", x="parameters")[0].read_text()
    assert "<!-- beta (n 2) -->" in text


def test_names_with_dollars_and_arms_that_begin_with_an_underscore_are_drawn(tmp_path: Path) -> None:
    odd = "cost $_$ of"
    rows = [row | {"arm": f"_{row['arm']}", "values": {odd: 0.5, f"{odd} x": 1.0}} for row in ROWS]
    text = draw_sweep(rows, tmp_path / "plot", x=f"{odd} x", y=[odd])[0].read_text()
    for words in ("_alpha (n 2)", "_beta (n 2)", "cost", "x"):
        assert words in text
    # Marks of two arms, and those that show them in the legend.
    assert re.findall("<!--  _[a-z]+ .n 2. -->", text) == ["<!--  _alpha (n 2) -->", "<!--  _beta (n 2) -->"]
