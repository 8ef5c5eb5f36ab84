"""The version is said in one place, and what else names it agrees."""

import re
import shutil
import subprocess
import sys
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


def test_a_checkout_is_a_package_without_its_link(tmp_path):
    """As where a program of `examples/` is run at the top of one that was not installed by -e."""
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "passes", tmp_path / "passes", ignore=left_out)
    link = shutil.ignore_patterns("__pycache__", "passes")
    shutil.copytree(ROOT / "hlo_surgery", tmp_path / "hlo_surgery", ignore=link)
    asked = "import hlo_surgery.passes as p; print(p.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env={}, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "passes" / "__init__.py"), done.stderr
