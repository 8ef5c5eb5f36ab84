"""What the default suite leaves out is slow, which CI runs; nothing of a file that is named is."""

from types import SimpleNamespace

from tests.conftest import TESTS, left_out, pytest_collection_modifyitems


def cases(count, room="loops", slow=()):
    """Cases of one test, which keep the marks that they get; some have one."""
    found = []
    for k in range(count):
        marks = ["slow"] if k in slow else []
        item = {"nodeid": f"test_a.py::test_b[{k}]", "fspath": TESTS / room / "test_a.py"}
        item |= {"add_marker": marks.append, "get_closest_marker": dict.fromkeys(marks, True).get}
        found.append(SimpleNamespace(**item, marks=marks))
    return found


def test_the_first_of_every_eight_cases_stays():
    items = cases(10)
    assert left_out(items) == [item for k, item in enumerate(items) if k not in (0, 8)]


def test_two_cases_stay():
    assert not left_out(cases(2))


def test_slow_cases_do_not_count():
    items = cases(12, slow=(0, 2))
    assert left_out(items) == [item for k, item in enumerate(items) if k not in (0, 1, 2, 10)]


def test_what_holds_the_house_together_stays():
    assert not left_out(cases(6, room="."))


def marked(*arguments):
    items = cases(10)
    pytest_collection_modifyitems(SimpleNamespace(args=list(arguments)), items)
    return [item.marks for item in items]


def test_where_rooms_are_run_the_others_are_slow():
    assert marked("tests", "hlo_surgery") == [[], *[["slow"]] * 7, [], ["slow"]]


def test_a_file_that_is_named_is_run_whole():
    assert marked("tests/loops/test_a.py") == [[]] * 10
    assert marked("tests/loops/test_a.py::test_b[1]") == [[]] * 10
