"""Files that hosting sites and other programs read: how to cite, where to report, what an issue has to say."""

from __future__ import annotations

import tomllib

import pytest
import yaml
from documents import README, ROOT, links, rows

from ostinato import __version__


def test_the_citation_names_this_version_and_licence() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert str(cited["version"]) == __version__
    assert cited["license"] == "Apache-2.0"
    assert "CITATION.cff" in links(README)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_every_issue_form_has_a_name_and_fields_with_labels(path: object) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / str(path)).read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    assert all(field["attributes"]["label"] for field in fields)


def test_every_extra_is_in_the_one_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = rows(ROOT / "docs" / "get-started.md")
    named = {name.strip("` ") for row in table[1:] for name in row[0].split(",")}
    assert named == set(project["optional-dependencies"])
