"""Figures that can be read: on a screen of 1,280 pixels, on one of 375, and on a printed page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from ostinato.analysis import analyze as logic
from ostinato.analysis.collectors import OneExample, StackExample, SubLayerKey
from ostinato.analysis.curves import LearningCurves
from ostinato.analysis.drawing import (
    FONT,
    NARROW,
    WIDE,
    _fonts_with,
    columns_of,
    common_legend,
    finish,
    line,
    panels,
    save_figure,
    ticks,
)
from ostinato.analysis.studies import Subject
from ostinato.analysis.studies.attention import ATTENTION_EXAMPLE
from ostinato.analysis.studies.depth import HALTING_MAP
from ostinato.analysis.studies.outcomes import _draw_curves
from ostinato.analysis.studies.pareto import _draw_fronts
from ostinato.analysis.studies.trade_offs import THRESHOLDS


def figures(surveyed: logic.Survey) -> Iterator[tuple[str, float, Figure]]:
    for study, findings in surveyed.found:
        for narrow, widest in ((False, WIDE), (True, NARROW)):
            yield f"{study.name}, {'narrow' if narrow else 'wide'}", widest, findings[0].draw(narrow)


def panels_of(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>" and axes.get_subplotspec() is not None]


def test_letters_that_the_usual_font_lacks_are_drawn_in_another_one_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def drawn() -> list[str]:
        figure, (axes,) = panels(1, narrow=False)
        axes.imshow(np.zeros((1, 3)))
        ticks(axes, ["a", "\u1d81", "b"])  # a letter of phonetics, which fonts that come with matplotlib have
        save_figure(figure, tmp_path / "figure", overwrite=True)
        return axes.xaxis.get_ticklabels()[1].get_fontfamily()

    _fonts_with.cache_clear()
    gone = font_manager.FontEntry(fname=str(tmp_path / "gone.ttf"), name="Gone")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [gone, *font_manager.fontManager.ttflist])
    assert drawn()[1:]
    assert not caplog.text
    _fonts_with.cache_clear()
    usual = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", usual)
    assert "DejaVu Sans" not in drawn()
    assert "no font here has \u1d81: boxes in figures" in caplog.text
    _fonts_with.cache_clear()


@pytest.mark.slow
def test_no_figure_is_wider_than_its_page_and_no_letter_smaller_than_seven_points(surveyed: logic.Survey) -> None:
    for name, widest, figure in figures(surveyed):
        assert figure.get_figwidth() <= widest, name
        for text in figure.findobj(Text):
            assert not text.get_text() or text.get_fontsize() >= FONT, f"{name}: {text.get_text()}"


@pytest.mark.slow
def test_no_panel_stands_alone_beside_an_empty_place(surveyed: logic.Survey) -> None:
    for name, _, figure in figures(surveyed):
        assert all(axes.axison for axes in figure.axes), name
        rows: dict[int, set[int]] = {}
        for axes in panels_of(figure):
            place = axes.get_subplotspec()
            rows.setdefault(place.rowspan.start, set()).update(place.colspan)
            n_columns = place.get_gridspec().ncols
        assert {len(columns) for columns in rows.values()} == {n_columns}, name


@pytest.mark.slow
def test_no_legend_lies_on_a_panel_and_no_name_of_a_tick_on_another(surveyed: logic.Survey) -> None:
    for name, _, figure in figures(surveyed):
        figure.draw_without_rendering()
        boxes = [axes.get_window_extent() for axes in figure.axes]
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend() is not None)]
        for legend in legends:
            inside = legend.get_window_extent().shrunk(0.98, 0.98)
            assert not any(inside.overlaps(box) for box in boxes), name
        assert_ticks_are_apart(name, figure)


def assert_ticks_are_apart(name: str, figure: Figure) -> None:
    """Compare the places of the names of ticks that stand beside each other; the figure has been laid out."""
    for axes in panels_of(figure):
        for labels, sides in ((axes.get_xticklabels(), "x0 x1"), (axes.get_yticklabels(), "y0 y1")):
            low, high = sides.split()
            found = [label.get_window_extent() for label in labels if label.get_text() and label.get_visible()]
            found.sort(key=lambda box: getattr(box, low))
            for first, second in pairwise(found):
                assert getattr(first, high) <= getattr(second, low) + 1, f"{name}: {axes.get_title()}"


def test_counts_of_parameters_do_not_run_into_each_other() -> None:
    costs, on_front = [[152_400.0, 152_400.0], [2.7, 3.5], [10.4, 11.4]], [np.array([True, True])] * 3
    figure = _draw_fronts(["a", "b"], "exact_match, test", [0.1, 0.2], costs, on_front, True)
    figure.draw_without_rendering()
    assert_ticks_are_apart("pareto", figure)
    assert any(label.get_text().endswith("K") for label in figure.axes[0].get_xticklabels())


def test_stacks_of_several_runs_have_strokes_of_their_own_and_log_scales_small_letters() -> None:
    depth = {"encoder": [(1, 2.0)], "decoder": [(1, 3.0)]}
    curves = {name: LearningCurves([(1, 2.0)], {"dev": {"loss": [(1, 2.0)]}}, depth) for name in ("one", "two")}
    figure = _draw_curves(curves, False)
    looks = {(found.get_color(), found.get_linestyle()) for found in figure.axes[-1].lines}
    assert len(looks) == len(figure.axes[-1].lines) == 4
    _, (panel,) = panels(1, False)
    panel.set_yscale("log")
    panel.plot([1, 2], [2, 6])
    finish(panel, "x", "y")
    assert all(tick.label1.get_fontsize() == FONT for tick in panel.yaxis.get_minor_ticks())


def test_experts_are_numbered_by_whole_numbers(surveyed: logic.Survey) -> None:
    for name in ("experts", "expert-tokens"):
        (finding, *_) = next(found for study, found in surveyed.found if study.name == name)
        for axes in panels_of(finding.draw(False)):
            assert all(float(at).is_integer() for at in axes.get_xticks()), name


def test_panels_of_a_last_row_share_its_width() -> None:
    figure, axes = panels(5, False, columns=3)
    assert columns_of(figure) == 3
    assert [len(panel.get_subplotspec().colspan) for panel in axes] == [2, 2, 2, 3, 3]
    assert columns_of(panels(3, True, columns=2)[0]) == 1


def test_names_of_ticks_are_as_many_as_have_room() -> None:
    _, (few, many) = panels(2, False)
    ticks(few, x=[str(i) for i in range(12)])
    ticks(many, x=[str(i) for i in range(200)])
    assert len(few.get_xticks()) == 12
    assert 10 < len(many.get_xticks()) <= 30


def test_a_legend_of_all_panels_names_every_line_once_and_is_as_wide_as_the_figure() -> None:
    figure, axes = panels(2, True)
    for panel in axes:
        for i in range(8):
            line(panel, i, [0, 1], [i, i], f"head {i + 1}")
    common_legend(figure, axes)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"head {i + 1}" for i in range(8)]
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_dollars_in_names_are_dollars(tmp_path: Path) -> None:
    figure, axes = panels(1, True)
    line(axes[0], 0, [0, 1], [0, 1], "$5-$10")
    ticks(axes[0], x=["$$", "a$b", "$\\foo$"])
    finish(axes[0], "$x$", "y", "$$")
    common_legend(figure, axes)
    save_figure(figure, tmp_path / "figure")
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "<!-- $$ -->" in svg
    assert "<!-- $5-$10 -->" in svg


def one_example(subject: Subject, executed: Sequence[Sequence[int]] = ((1, 1, 0), (1, 0, 0))) -> Subject:
    """Return a subject of whose example no token runs the third round, and one token the second."""
    executed_TR = np.array(executed, dtype=np.float64)
    module = SubLayerKey("encoder", 1, "self_attention")
    stack = StackExample([4, 5], np.array([[1.0, 0.5, 0], [1, 0, 0]]), executed_TR, {module: np.full((1, 2, 2), 0.5)})
    collector = OneExample(0)
    collector.stacks = {"encoder": stack}
    return Subject(subject.name, subject.run, subject.examples, collected={OneExample: collector})


def test_rounds_that_no_token_ran_are_not_drawn(subject: Subject) -> None:
    (found,) = HALTING_MAP.find([one_example(subject)], None)
    figure = found.draw(False)
    (image,) = [axes.images[0] for axes in panels_of(figure) if axes.images]
    assert image.get_array().shape == (2, 2)
    assert found.arrays["encoder_map_TR"].shape == (2, 3)
    assert "round 3 ran for no token" in found.note
    (found,) = HALTING_MAP.find([one_example(subject, [[1, 0, 1], [1, 0, 0]])], None)
    assert "ran for no token" not in found.note  # the second round left out both, and the third did not
    (image,) = [axes.images[0] for axes in panels_of(found.draw(False)) if axes.images]
    assert image.get_array().shape == (3, 2)


def test_queries_that_had_halted_are_blank_and_not_dark(subject: Subject) -> None:
    (found,) = ATTENTION_EXAMPLE.find([one_example(subject)], None)
    (image,) = [axes.images[0] for axes in panels_of(found.draw(False)) if axes.images]
    shown = np.ma.getmaskarray(image.get_array())
    assert shown.tolist() == [[False, False], [True, True]]


def test_the_note_of_thresholds_names_a_metric_and_no_task(surveyed: logic.Survey) -> None:
    ((finding, *_),) = [found for study, found in surveyed.found if study is THRESHOLDS]
    assert "by exact_match" in finding.note
    assert "algorithmic" not in finding.note
