"""The bugs of `tools/planted_bugs.py`: each can be planted, and the tests to see them are there."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def listed():
    """The list, which is no package."""
    sys.path.insert(0, str(ROOT / "tools"))
    import soundness_bugs

    yield soundness_bugs
    sys.path.remove(str(ROOT / "tools"))


def test_every_bug_can_be_planted(listed):
    for bug in listed.BUGS:
        text = (ROOT / "passes" / bug.file).read_text()
        assert text.count(bug.old) == 1, f"{bug.file}: not there exactly once: {bug.old}"
        planted = ast.dump(ast.parse(text.replace(bug.old, bug.new)))
        assert planted != ast.dump(ast.parse(text)), f"{bug.file}: changes nothing: {bug.new}"


def test_every_bug_is_another(listed):
    assert len({(bug.file, bug.old, bug.new) for bug in listed.BUGS}) == len(listed.BUGS)
    assert len({(bug.file, bug.accepts) for bug in listed.BUGS}) == len(listed.BUGS)


def test_the_tests_that_are_to_see_them_are_there(listed):
    for test in listed.TESTS:
        file, *names = test.split("::")
        functions = [
            node
            for node in ast.parse((ROOT / file).read_text()).body
            if isinstance(node, ast.FunctionDef)
        ]
        assert {f.name for f in functions}.issuperset(names), test
