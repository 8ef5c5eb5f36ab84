"""The version is said in one place, and what else names it agrees."""

import re
import tomllib
from pathlib import Path

import hlo_surgery

ROOT = Path(__file__).resolve().parent.parent
VERSION = hlo_surgery.__version__


def test_the_version_is_one_of_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


def test_the_project_takes_its_version_from_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "hlo_surgery.__version__"
    }


def test_the_changelog_begins_with_it():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == VERSION


def test_the_citation_names_it():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def test_types_are_marked():
    assert (ROOT / "hlo_surgery" / "py.typed").exists()


def test_the_extras_of_dev_are_enough_for_the_examples():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(extras["examples"]) <= set(extras["dev"])
