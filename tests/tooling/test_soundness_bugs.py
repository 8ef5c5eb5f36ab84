"""The bugs of `tools/planted_bugs.py`: each can be planted, and the tests to see them are there."""

import ast
from pathlib import Path

from tools.soundness_bugs import BUGS, TESTS

ROOT = Path(__file__).parent.parent.parent


def test_every_bug_can_be_planted():
    for bug in BUGS:
        text = (ROOT / "passes" / bug.file).read_text()
        assert text.count(bug.old) == 1, f"{bug.file}: not there exactly once: {bug.old}"
        planted = ast.dump(ast.parse(text.replace(bug.old, bug.new)))
        assert planted != ast.dump(ast.parse(text)), f"{bug.file}: changes nothing: {bug.new}"


def test_every_bug_is_another():
    assert len({(bug.file, bug.old, bug.new) for bug in BUGS}) == len(BUGS)
    assert len({(bug.file, bug.accepts) for bug in BUGS}) == len(BUGS)


def test_the_tests_that_are_to_see_them_are_there():
    for test in TESTS:
        file, *names = test.split("::")
        functions = [
            node
            for node in ast.parse((ROOT / file).read_text()).body
            if isinstance(node, ast.FunctionDef)
        ]
        assert {f.name for f in functions}.issuperset(names), test
