"""What the default suite leaves out is slow, which CI runs, or more of the same; nothing of a file
that is named is.
"""

from types import SimpleNamespace

from tests.conftest import (
    SMOKE,
    TESTS,
    left_out,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
)


def cases(count, room="loops", slow=()):
    """Cases of one test, which keep the marks that they get; some have one."""
    found = []
    for k in range(count):
        marks = ["slow"] if k in slow else []
        item = {"nodeid": f"test_a.py::test_b[{k}]", "fspath": TESTS / room / "test_a.py"}
        item |= {"add_marker": marks.append, "get_closest_marker": dict.fromkeys(marks, True).get}
        found.append(SimpleNamespace(**item, marks=marks))
    return found


def marks_of(items):
    found = {id(item): mark for item, mark in left_out(items)}
    return [found.get(id(item), "") for item in items]


def test_the_first_of_every_eight_cases_stays_and_the_fifth_is_slow():
    more = ["more"] * 3
    assert marks_of(cases(10)) == ["", *more, "slow", *more, "", "more"]


def test_what_holds_the_house_together_stays():
    assert not any(marks_of(cases(6, room=".")))


def marked(*arguments):
    items = cases(10)
    pytest_collection_modifyitems(SimpleNamespace(args=list(arguments)), items)
    return [item.marks for item in items]


def test_a_file_that_is_named_is_run_whole():
    assert marked("tests/loops/test_a.py") == [[]] * 10
    assert marked("tests/loops/test_a.py::test_b[1]") == [[]] * 10


def read(marks):
    """Which of the tests' files are read where these marks are asked for."""
    config = SimpleNamespace(option=SimpleNamespace(markexpr=marks))
    files = TESTS.rglob("test_*.py")
    return {file.stem for file in files if not pytest_ignore_collect(file, config)}


def test_for_the_smoke_part_other_files_are_not_read():
    assert read("smoke") == SMOKE
    assert read("smoke and not more") == read("") > SMOKE
