"""The page on how to add something: its examples fit the code, and do what they say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hlo_surgery.passes.strategies.choice import STRATEGIES

ROOT = Path(__file__).parent.parent.parent
COPIED = ("passes", "hlo_surgery", "tests", "tools", "examples", "docs")
BLOCK = re.compile(r"^```(python|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = ("torch_index_select", "kurtosis", "outer")
# What the page promises of these, and what one of them could leave out.
TESTS = (
    "tests/raising/test_raising.py",
    "tests/axes/test_claims.py",
    "tests/strategies/test_planning.py",
    "tests/cli/test_cli_statistics.py",
    "tests/test_rooms.py",
    "tests/test_docs.py",
    "hlo_surgery/statistics/elementwise.py",
)
ALWAYS = ("every_rule", "every_contraction", "every_statistic_is_tried", "a_room", "is_installed")


def changes(page):
    """Of each example, in order, the file that it changes, and either text or hunks."""
    for kind, text in BLOCK.findall(page):
        mark = r"^--- (\S+)\n" if kind == "diff" else r"^# (\S+\.py)\n"
        empty, *parts = re.split(mark, text, flags=re.MULTILINE)
        assert not empty, f"no file is named before {empty!r}"
        for file, part in zip(parts[::2], parts[1::2], strict=True):
            yield file, re.split(r"^@@\n", part, flags=re.MULTILINE) if kind == "diff" else part


def replaced(hunk):
    """The lines that a hunk finds, and those that it leaves."""
    lines = hunk.splitlines(keepends=True)
    assert all(line[0] in " +-" or line == "\n" for line in lines), hunk
    return tuple("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))


def apply(tree, file, change):
    path = tree / file
    if isinstance(change, str):
        before = path.read_text().rstrip() + "\n\n\n" if path.exists() else ""
        path.write_text(before + change)
        return
    for hunk in change:
        old, new = replaced(hunk)
        text = f"\n{path.read_text()}"
        assert text.count(f"\n{old}") == 1, f"{file} has not exactly once:\n{old}"
        path.write_text(text.replace(f"\n{old}", f"\n{new}")[1:])


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project with all the examples added to it."""
    copy = tmp_path_factory.mktemp("howto")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
    for file in [*ROOT.glob("*.md"), ROOT / "conftest.py", ROOT / "pyproject.toml"]:
        shutil.copy(file, copy / file.name)
    (copy / "fixtures").symlink_to(ROOT / "fixtures")
    # As tools/link_compiler makes it, so that all look at the copy's compiler.
    link = copy / "hlo_surgery" / "passes"
    link.unlink(missing_ok=True)
    link.symlink_to(Path("..", "passes"))
    for file, change in changes((ROOT / "docs" / "howto.md").read_text()):
        apply(copy, file, change)
    if shutil.which("ruff"):
        # Where an import stands among its neighbours is for whoever adds others to say.
        in_order = ["ruff", "check", "--select", "I", "--fix", "passes/strategies/choice.py"]
        subprocess.run(in_order, cwd=copy, check=True, capture_output=True)
    return copy


def test_each_takes_as_many_files_as_is_promised():
    """Of the code, not counting tests and pages."""
    page = (ROOT / "docs" / "howto.md").read_text()
    sections = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    parts = zip(sections[1::2], sections[2::2], strict=True)
    files = {name: {file for file, _ in changes(part)} for name, part in parts}
    code = {
        k: {f for f in v if f.startswith(("passes/", "hlo_surgery/"))} for k, v in files.items()
    }
    assert {name: len(found) for name, found in code.items() if found} == {
        "An op": 2,
        "A statistic": 2,
        "A strategy": 2,
    }


@pytest.mark.slow
def test_the_examples_do_what_they_say(tree):
    wanted = " or ".join([*NAMES, *ALWAYS])
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", wanted]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*command, "-rp", *TESTS], cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    for name in NAMES:
        assert re.search(f"^PASSED.*{name}", done.stdout, re.MULTILINE), name


@pytest.mark.skipif(shutil.which("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=str)
def test_the_examples_are_written_as_the_rest_is(tree, command):
    changed = {file for file, _ in changes((ROOT / "docs" / "howto.md").read_text())}
    code = sorted(file for file in changed if file.endswith(".py"))
    done = subprocess.run(["ruff", *command, *code], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_users_are_told_of_every_strategy(strategy):
    costs = (ROOT / "docs" / "costs.md").read_text()
    assert f"| `{strategy.name}` |" in costs.split("`strategy=` forces")[1]
    assert strategy.words
