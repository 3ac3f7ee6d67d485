"""The pages of results are what their rows say, and a page that cannot be made says why in one line."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from documents import DOCUMENTS, ROOT, links, shell_lines

from ostinato.errors import OstinatoError
from ostinato.experiments.sweep.files import first_recipe, load_sweep

FOLDER = ROOT / "docs" / "results"
SOURCES = sorted((FOLDER / "pages").glob("*.yaml"))
PAGES = [FOLDER / f"{source.stem}.md" for source in SOURCES]
ROWS = [
    {
        "arm": arm,
        "seed": seed,
        "n": 100,
        "right": right,
        "dev": right - 0.1,
        "cost": 3_000_000,
        "parts": {"value": 1.5, "low": 1, "high": 2},
    }
    for arm, rights in (("old", (0.5, 0.6)), ("new", (0.7, 0.9)))
    for seed, right in enumerate(rights)
]
PAGE: dict[str, Any] = {
    "question": "Is it?",
    "answer": "Yes: {cell[New][right]}, {number[gap]}.",
    "setting": "Two seeds.",
    "rows": ["rows.jsonl"],
    "group": {"arm": "arm"},
    "names": {"new": "New"},
    "columns": [
        {"title": "right", "path": "right", "unit": "percent", "digits": 1},
        {"title": "MACs", "path": "cost", "unit": "millions", "digits": 1},
    ],
    "numbers": [
        {
            "title": "gap",
            "path": "right",
            "where": {"arm": "new"},
            "minus": {"arm": "old"},
            "unit": "percent",
            "digits": 0,
        }
    ],
    "cut": ["More seeds."],
    "commands": ["ostinato sweep digits"],
}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(
        sys, "path", [*sys.path, str(FOLDER), str(ROOT / "benchmarks")]
    )  # as for a script, which adds the benchmarks
    spec = importlib.util.spec_from_file_location("result_pages", FOLDER / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results of one's own."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS), encoding="utf-8")
    (tmp_path / "other-rows.yaml").write_text("old.jsonl: what it was\n", encoding="utf-8")
    monkeypatch.setattr(make, "FOLDER", tmp_path)
    return tmp_path


def written(folder: Path, **changes: Any) -> Path:
    """Write the page with changes and return its file."""
    path = folder / "pages" / "mine.yaml"
    path.write_text(yaml.safe_dump(PAGE | changes), encoding="utf-8")
    return path


def test_the_pages_are_what_their_rows_say(make: ModuleType) -> None:
    make.main(["--check"])


def test_there_is_a_page_for_every_question_and_none_is_long() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == {"README.md", "claims.md", *(path.name for path in PAGES)}
    assert set(PAGES) <= set(DOCUMENTS), "whose links and commands are tested"
    lengths = {path.name: path.read_text(encoding="utf-8").count("\n") for path in (FOLDER / "README.md", *PAGES)}
    assert max(lengths.values()) <= 120, lengths


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_page_has_one_figure_that_is_there(path: Path) -> None:
    (figure,) = re.findall(r"^!\[.+\]\((.+)\)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert (FOLDER / figure).is_file()


def test_every_file_of_rows_is_shown_by_a_page_or_by_the_document_that_is_named() -> None:
    shown = [name for source in SOURCES for name in yaml.safe_load(source.read_text(encoding="utf-8"))["rows"]]
    others = yaml.safe_load((FOLDER / "other-rows.yaml").read_text(encoding="utf-8"))
    assert sorted({*shown, *others}) == sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.jsonl"))
    assert not {*shown} & {*others}
    for name, where in others.items():
        (document,) = re.findall(r"\((.+)\)", where)
        text = (FOLDER / document).read_text(encoding="utf-8")
        assert f"results/{name}" in text or f"<!-- begin {Path(name).stem} -->" in text, name


def test_the_page_of_babi_has_the_batches_of_its_sweep() -> None:
    sweep = load_sweep("universal-transformer/babi-joint")
    shown = {row["arm"] for row in map(json.loads, (FOLDER / "babi-joint.jsonl").read_text().splitlines())}
    (tokens,) = {first_recipe(sweep, sweep.arm(name)).data.tokens_per_batch for name in shown}
    assert f" of {tokens} padded facts" in " ".join((FOLDER / "babi-joint.md").read_text().split())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_script_of_a_page_is_there_and_knows_its_options(path: Path) -> None:
    known = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").glob("*.py"))
    lines = shell_lines(path)
    assert lines
    for line in (line for line in lines if line.startswith("python ")):
        assert (ROOT / line.split()[1]).is_file(), line
        assert [option for option in re.findall(r"--[\w-]+", line) if f'"{option}"' not in known] == []
    assert all(line.startswith(("ostinato ", "python ", "pip ")) for line in lines)


def test_a_page_has_its_numbers_from_the_rows(make: ModuleType, folder: Path) -> None:
    text = make.Made(written(folder)).document()
    assert "**Yes: 80.0 ± 14.1 %, +25 [-39, +89] points.**" in text
    assert (
        "| arm | right | MACs |\n|---|---|---|\n| old | 55.0 ± 7.1 % | 3.0 M |\n| New | 80.0 ± 14.1 % | 3.0 M |" in text
    )


def test_a_difference_may_be_of_two_numbers_of_the_rows(make: ModuleType, folder: Path) -> None:
    of_two = {**PAGE["numbers"][0], "minus_path": "dev"}
    assert "+35 [-29, +99] points" in make.Made(written(folder, numbers=[of_two])).document()
    of_two["minus"] = of_two["where"]
    assert "+10 points" in make.Made(written(folder, numbers=[of_two])).document(), "of the same rows, alike in both"


def test_lines_of_a_table_may_be_numbers_of_the_same_rows(make: ModuleType, folder: Path) -> None:
    lines = {"at a cost": "cost", "rightly": "right"}
    columns = [{"title": "all", "path": "{}", "digits": 2}, {"title": "new", "path": "{}", "where": {"arm": "new"}}]
    settings = {"group": {"what": "{}"}, "lines": lines, "columns": columns, "numbers": [], "where": {"seed": 0}}
    text = make.Made(written(folder, **settings, answer="{cell[rightly][all]}")).document()
    table = "| at a cost | 3,000,000.00 | 3,000,000 |\n| rightly | 0.60 ± 0.14 | 0.7 |"
    assert f"| what | all | new |\n|---|---|---|\n{table}" in text
    assert "**0.60 ± 0.14**" in text


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"path": "parts", "interval": True, "digits": 1}, "1.5 [1.0, 2.0]"),
        ({"path": "right", "of": "n", "unit": "percent", "digits": 1}, "50.0 [40.4, 59.6] %"),
        ({"path": "right", "per": "n", "digits": 3}, "0.005"),
        ({"path": "arm", "unit": "text"}, "old"),
        ({"path": "right", "signed": True}, "+0.5"),
        ({"path": "right", "where": {}, "best_by": "dev", "unit": "percent", "digits": 1}, "60.0 %"),
    ],
)
def test_a_column_is_shown_as_it_says(make: ModuleType, folder: Path, settings: dict[str, Any], shown: str) -> None:
    column = {"title": "mine", "where": {"arm": ["old", "none"], "seed": 0}, **settings}
    made = make.Made(written(folder, where={"arm": "old"}, columns=[column], answer="{cell[old][mine]}"))
    assert made.answer == shown


def test_timings_are_compared_round_by_round_and_over_files(make: ModuleType, folder: Path) -> None:
    make.main([])  # the benchmarks' rule is found
    for file, seconds in (("rows.jsonl", [2, 4, 6]), ("again.jsonl", [3, 6, 9])):
        own = {"cell": "only", "kind": "time", "name": "ours", "seconds": seconds, "is_disturbed": [False] * 3}
        rows = [own, own | {"name": "dense", "seconds": [1, 2, 3]}]
        (folder / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    column = {"title": "mine", "path": "seconds", "where": {"name": "ours"}, "ratio_to": {"name": "dense"}}
    settings = {"rows": ["rows.jsonl", "again.jsonl"], "group": {"layer": "cell"}, "numbers": []}
    made = make.Made(written(folder, **settings, columns=[column | {"interval": True}], answer="{cell[only][mine]}"))
    assert made.answer == r"2.50\* [2.00, 3.00]", "their median, of few rounds"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"curves": [{"label": "mine", "points": ["right", "left"], "x": "cost", "y": "{}"}]},
            "curves is 'mine': not every one of ['right', 'left'] is in its rows",
        ),
        ({"answr": "Yes."}, "answr"),
        ({"answer": "{cell[Newer][right]}"}, "there is no 'Newer'"),
        ({"answer": "{cell[New][wrong]}"}, "there is no 'wrong'"),
        ({"columns": [{"title": "right", "path": "wrong"}]}, "'right' is 'wrong': no row has it"),
        ({"columns": [{"title": "right", "path": "right", "unit": "miles"}]}, "columns.0.unit is 'miles'"),
        ({"columns": [{"title": "right", "path": "parts", "interval": True}]}, "2 rows where one interval of 'right'"),
        ({"group": {"arm": "part"}}, "a row without part"),
        ({"drawn": ["left"]}, "drawn is 'left': no column has this title"),
        ({"rows": ["row.jsonl"]}, "row.jsonl: no such file; the nearest name there is rows.jsonl"),
    ],
)
def test_a_page_that_cannot_be_made_says_why(
    make: ModuleType, folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OstinatoError, match=re.escape(message)) as caught:
        make.Made(written(folder, **changes)).document()
    assert "\n" not in str(caught.value)
    with pytest.raises(SystemExit, match=re.escape(message)):
        make.main([])


def test_a_figure_has_a_point_for_every_seed(make: ModuleType, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    source = written(folder, drawn=["right"], drawn_label="right (%)")
    make.main(["--figures"])
    drawn = (folder / "mine.svg").read_text(encoding="utf-8")
    points = {
        re.sub(r'y="[^"]+"', "", use) for use in re.findall(r'<use [^>]*x="[^"]+" [^>]*fill-opacity: 0.6[^>]*>', drawn)
    }
    assert len(points) == len(ROWS)
    assert f"![{PAGE['question']}](mine.svg)" in (folder / "mine.md").read_text(encoding="utf-8")
    make.draw(make.Made(source))
    assert (folder / "mine.svg").read_text(encoding="utf-8") == drawn, "the same numbers give the same file"
    make.main(["--check"])
    rows = (folder / "rows.jsonl").read_text(encoding="utf-8").replace("0.9", "0.7000001")
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    make.main([])
    with pytest.raises(SystemExit):
        make.main(["--check"], (said := []).append)
    assert said == [f"{folder / 'mine.svg'}: shows other numbers, or is not there: --figures draws it\n"]


def test_the_check_says_what_differs_and_writes_nothing(make: ModuleType, folder: Path) -> None:
    written(folder)
    make.main([])
    make.main(["--check"])
    page = folder / "mine.md"
    page.write_text(page.read_text(encoding="utf-8").replace("80.0", "90.0"), encoding="utf-8")
    said: list[str] = []
    with pytest.raises(SystemExit, match=r"run python docs/results/make\.py"):
        make.main(["--check"], said.append)
    assert "+| New | 80.0 ± 14.1 % | 3.0 M |" in said[0]
    assert "90.0" in page.read_text(encoding="utf-8")
    assert links(folder / "README.md") == ["claims.md", "mine.md", "old.jsonl"]


def test_a_figure_of_curves_has_a_line_through_the_means_and_the_seeds_behind_it(
    make: ModuleType, folder: Path
) -> None:
    pytest.importorskip("matplotlib")
    curve = {"label": "new", "where": {"arm": "new"}, "points": ["right", "n"], "x": "cost", "y": "{}"}
    settings = {"curves": [curve], "drawn_label": "right", "curves_x": "MACs", "curves_unit": "millions"}
    made = make.Made(written(folder, **settings))
    assert make.curve_lines(made) == [("new", [([3e6, 3e6], [0.7, 0.9]), ([3e6, 3e6], [100, 100])])]
    by_arm = curve | {"where": {"arm": "{}"}, "points": ["old", "new"], "y": "right"}
    arms = make.Made(written(folder, **settings | {"curves": [by_arm]}))
    assert [ys for _, ys in make.curve_lines(arms)[0].columns] == [[0.5, 0.6], [0.7, 0.9]]
    make.main(["--figures"])
    assert "mine.svg" in (folder / "mine.md").read_text(encoding="utf-8")
    make.main(["--check"])
    (folder / "rows.jsonl").write_text(
        "".join(f"{json.dumps(row | {'right': 0.5})}\n" for row in ROWS), encoding="utf-8"
    )
    with pytest.raises(SystemExit, match="pages are not what their rows say"):
        make.main(["--check"])
