"""Every analysis on runs of a moment: what applies, what is written, and what the report says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from halting_runs import plain_run
from ostinato import train
from ostinato.analysis import analyze as logic
from ostinato.analysis.drawing import columns_of, name_axes, panels
from ostinato.analysis.report import write_report
from ostinato.analysis.studies import STUDIES, Finding, Subject
from ostinato.config.load import check_recipe
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load

SHOWN = ("categories", "experts", "similarity")


def write(given: list[Subject], surveyed: logic.Survey, out: Path, names: Sequence[str]) -> logic.Analysed:
    some = [(study, found) for study, found in surveyed.found if study.name in names]
    return logic.write(given, logic.Survey(some, {"fluctuation": "first: a <reason>"}), out)


@pytest.fixture(scope="module")
def written(given: list[Subject], surveyed: logic.Survey, tmp_path_factory: pytest.TempPathFactory) -> logic.Analysed:
    """One of the analyses, written: figures of all would take long."""
    return write(given, surveyed, tmp_path_factory.mktemp("out"), ["similarity"])


@pytest.fixture(scope="module")
def several(given: list[Subject], surveyed: logic.Survey, tmp_path_factory: pytest.TempPathFactory) -> logic.Analysed:
    return write(given, surveyed, tmp_path_factory.mktemp("out"), SHOWN)


def test_every_analysis_applies_to_runs_that_have_everything(surveyed: logic.Survey) -> None:
    assert surveyed.left_out == {}
    assert [study.name for study, _ in surveyed.found] == [study.name for study in STUDIES]
    for study, findings in surveyed.found:
        assert findings, study.name
        for finding in findings:
            assert finding.rows, study.name
            assert all(len(row) == len(finding.columns) for row in finding.rows), study.name


@pytest.mark.slow
def test_every_figure_names_its_axes_and_reflows_for_narrow_screens(surveyed: logic.Survey) -> None:
    for study, findings in surveyed.found:
        figure = findings[0].draw(False)
        for axes in figure.axes:
            if axes.axison and axes.get_label() != "<colorbar>":
                assert axes.get_xlabel() or axes.get_ylabel() == "%", study.name
                assert not re.search(r"loss$|latency$|seconds$|entropy$", axes.get_ylabel()), f"{study.name}: no unit"
        small = findings[0].draw(True)
        assert small.get_figwidth() <= 5.2, study.name
        assert columns_of(small) <= max(1, columns_of(figure) // 2), study.name


@pytest.mark.slow
def test_what_is_written_lies_beside_the_report(several: logic.Analysed) -> None:
    assert several.found == SHOWN
    for name in several.found:
        assert {path.suffix for path in several.files if path.name.startswith(f"{name}-")} >= {".json", ".svg", ".png"}
    assert all(path.stat().st_size > 100 for path in several.files)


@pytest.mark.slow
def test_the_report_asks_nothing_of_the_network_and_its_links_lead_somewhere(several: logic.Analysed) -> None:
    html = several.report.read_text(encoding="utf-8")
    used = re.findall(r'(?:src|href|srcset)="([^"]*)"', html)
    assert not [one for one in used if re.match(r"(https?:)?//", one)]
    assert not re.search(r"url\(|@import|<(script|link|iframe|object|embed|base|form)\b|http-equiv=.refresh", html)
    assert "default-src 'none'" in html
    files = [one for one in used if not one.startswith(("data:", "#"))]
    assert files
    assert all((several.report.parent / one).is_file() for one in files)
    assert all(f'id="{one[1:]}"' in html for one in used if one.startswith("#"))
    for name in SHOWN:
        assert html.count(f'<section id="{name}">') == 1
    assert 'name="viewport"' in html
    assert html.count("<source media=") == html.count("<picture>") > 0


def test_the_overview_tells_recipe_budget_and_results(written: logic.Analysed, given: list[Subject]) -> None:
    html = written.report.read_text(encoding="utf-8")
    overview = html[html.index("Overview") : html.index("<nav")]
    assert f"{given[0].model.n_parameters():,}" in overview
    for told in ("parameters stored", "M MACs an example, full depth", "halting threshold", "exact_match", "n_updates"):
        assert told in overview
    assert "<b>fluctuation</b>: first: a &lt;reason&gt;" in html


def test_results_show_what_the_task_is_scored_by_first_and_the_rest_when_unfolded(written: logic.Analysed) -> None:
    html = written.report.read_text(encoding="utf-8")
    results = html[html.index("<h3>Results</h3>") : html.index("<details><summary>Recipe")]
    shown, _, rest = results.partition("<details>")
    names = re.findall(r"<tr><td>([^<]*)</td>", shown)
    assert names[:2] == ["exact_match", "token_accuracy_free"]
    assert set(names[2:]) <= {"loss", "n"}
    assert "token_accuracy</td>" in rest
    assert "loss</td>" not in rest


def test_results_of_texts_begin_with_what_is_compared_without_decoding(tmp_path: Path) -> None:
    (file := tmp_path / "texts.txt").write_text("a b\nb a\n", encoding="utf-8")
    step = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    settings = {
        "model": {"kind": "language_model", "d_model": 8, "decoder": step},
        "training": {"n_updates": 1, "device": "cpu"},
    }
    agreement = {"kind": "agreement", "n_train": 300, "n_eval": 2, "max_attractors": 1}
    files = {split: str(file) for split in ("train", "dev", "test")}
    texts = {"task": {"kind": "files", "model_kind": "language_model"}, "data": files}
    for name, own, scores in (
        ("verbs", {"task": agreement}, ["ranking"]),
        ("texts", texts, ["perplexity", "word_perplexity", "bits_per_byte"]),
    ):
        train(check_recipe(settings | own), tmp_path / name)
        given = logic.subjects([load(tmp_path / name, device="cpu")], None, 2)
        html = write_report(tmp_path / f"{name}.html", given, [], {}).read_text(encoding="utf-8")
        results = html[html.index("<h3>Results</h3>") : html.index("<details>")]
        assert re.findall(r"<tr><td>([^<]*)</td>", results) == [*scores, "loss", "n"]


def test_the_overview_tells_how_many_of_the_planned_updates_were_done(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))

    def shown() -> str:
        given = logic.subjects([load(run, device="cpu")], None, 2)
        html = write_report(tmp_path / "report.html", given, [], {}).read_text(encoding="utf-8")
        return str(re.findall(r"<td>updates</td><td[^>]*>([^<]*)</td>", html)[0])

    assert shown() == "3"
    (run / "results.json").write_text(json.dumps(results | {"n_updates": 2}), encoding="utf-8")  # patience ended it
    assert shown() == "2 of 3"
    (run / "results.json").unlink()
    assert shown() == "3 planned, not finished"


def test_the_report_can_be_printed(written: logic.Analysed) -> None:
    html = written.report.read_text(encoding="utf-8")
    assert "@media print" in html


def test_numbers_are_json_with_null_for_what_is_none(written: logic.Analysed) -> None:
    for path in (path for path in written.files if path.suffix == ".json"):
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
        assert {"analysis", "runs", "table"} <= found.keys()
        assert all(len(row) == len(found["table"]["columns"]) for row in found["table"]["rows"])


def test_columns_that_an_analysis_declares_are_those_it_shows(surveyed: logic.Survey) -> None:
    assert sum(bool(study.columns) for study, _ in surveyed.found) > 10
    for study, findings in surveyed.found:
        if study.columns:
            assert all(set(finding.columns) <= set(study.columns) for finding in findings), study.name


def test_a_run_is_as_similar_to_itself_as_can_be(runs: list[Path]) -> None:
    loaded = load(runs[0], device="cpu")
    given = logic.subjects([loaded, loaded], None, 24)
    assert [one.name for one in given] == ["first", "first-2"]
    ((_, (finding,)),) = logic.survey(given, only=["similarity"]).found
    assert finding.data["seeds"] == ["first-2"]
    for where in ("after", "before"):
        values = finding.data[where]["first-2"]
        assert all(one["cka"] == pytest.approx(1.0) and one["lns"] == 1.0 for one in values)
        assert max(one["lns"] for one in finding.data[where]["untrained"]) < 1.0
    # A run that has the name of the untrained model is none.
    given = logic.subjects([loaded, loaded], None, 24)
    given[1].name = "untrained"
    ((_, (finding,)),) = logic.survey(given, only=["similarity"]).found
    assert finding.data["seeds"] == ["untrained"]
    assert all(one["lns"] == 1.0 for one in finding.data["after"]["untrained"])
    assert max(one["lns"] for one in finding.data["after"]["untrained model"]) < 1.0


def test_routers_that_saw_too_few_tokens_for_a_map_are_no_error(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.analysis.studies.token_map._FEWEST", 10**6)
    given = logic.subjects([load(runs[0], device="cpu")], None, 2)
    written = logic.write(given, logic.survey(given, only=["token-map"]), tmp_path / "out")
    assert "No router saw 1000000 tokens" in written.report.read_text(encoding="utf-8")


def test_a_plain_run_says_what_does_not_apply_and_why(tmp_path: Path) -> None:
    given = logic.subjects([load(plain_run(tmp_path / "plain"), device="cpu")], None, 24)
    told: list[int] = []
    found = logic.survey(given, on_start=told.append, on_progress=told.append)
    assert told[0] == sum(told[1:]) > 24
    assert set(found.left_out) == {
        *("pareto", "depth", "halting-map", "thresholds", "experts", "expert-tokens", "token-map", "collapse"),
        *("fluctuation", "consistency", "routing-over-time", "similarity"),
    }
    assert found.left_out["depth"] == "plain: no token of its model can halt"
    assert found.left_out["similarity"] == "it compares runs, and one was given"
    only_words = [(study, findings) for study, findings in found.found if study.name == "learning"]
    report = logic.write(given, logic.Survey(only_words, found.left_out), tmp_path / "out").report
    html = report.read_text(encoding="utf-8")
    assert all(f"<b>{name}</b>" in html for name in found.left_out)


def test_a_name_that_is_no_analysis_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"only is 'umap': must be one of budget, learning"):
        logic.choose(["depth", "umap"])


def test_a_folder_is_written_again_but_nothing_of_others(tmp_path: Path) -> None:
    nothing = logic.Survey([], {})
    out = tmp_path / "out"
    logic.write([], nothing, out)
    logic.write([], nothing, out)
    (out / "similarity-x.svg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"similarity-x\.svg: is a link"):
        logic.analyze([], out)
    (out / "similarity-x.svg").unlink()
    (out / "report.html").write_text("<html>my own report", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"report\.html: was not written by this command"):
        logic.analyze([], out)
    with pytest.raises(ConfigError, match="is no folder"):
        logic.analyze([], out / "report.html")


def finding_of(runs: str) -> Finding:
    def draw(narrow: bool) -> Figure:
        figure, (axes,) = panels(1, narrow)
        name_axes(axes, f"of {runs!a}", "y")
        return figure

    return Finding(("of",), [[ascii(runs)]], {}, draw, runs=runs)


@pytest.mark.slow
def test_files_of_many_runs_have_a_name_that_a_file_system_takes(tmp_path: Path) -> None:
    (study,) = logic.choose(["learning"])
    few = "first second"
    many, more = (" ".join(f"scan-universal-length-seed-{seed}" for seed in range(n)) for n in (12, 13))
    found = [finding_of(runs) for runs in (few, many, more)]
    written = logic.write([], logic.Survey([(study, found)], {}), tmp_path / "out")
    files = [path for path in written.files if path.suffix == ".json"]
    assert [json.loads(path.read_text(encoding="utf-8"))["runs"] for path in files] == [few, many, more]
    assert files[0].name == "learning-first-second.json"
    assert len(set(written.files)) == 1 + 3 * 3


@pytest.mark.slow
def test_runs_whose_names_differ_in_other_than_ascii_letters_have_files_of_their_own(tmp_path: Path) -> None:
    (study,) = logic.choose(["budget"])
    names = [
        "lr-0.1",
        "lr=0.1",
        "lr 0.1",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "\N{LATIN SMALL LETTER U WITH DIAERESIS}",
    ]
    written = logic.write([], logic.Survey([(study, list(map(finding_of, names)))], {}), tmp_path / "out")
    files = [path for path in written.files if path.suffix == ".json"]
    assert [json.loads(path.read_text(encoding="utf-8"))["runs"] for path in files] == names
    assert files[0].name == "budget-lr-0.1.json"
    html = written.report.read_text(encoding="utf-8")
    figures = re.findall(r'src="data:image/svg[^"]*"', html)
    assert len(set(figures)) == len(names)


def test_without_matplotlib_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "can_draw", lambda: False)
    with pytest.raises(ConfigError, match="figures need matplotlib"):
        logic.check_folder(tmp_path / "out")
