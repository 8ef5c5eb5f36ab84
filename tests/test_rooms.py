"""Rooms: each holds 12 files at most and says what it is; the product's are installed."""

import ast
import graphlib
import pathlib
import tomllib

from tests.conftest import MARKED

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 12
LINK = ("hlo_surgery", "passes")


def folders(top):
    """A folder at the top, and those below it, that hold Python files; the compiler's but once."""
    found = {path.parent for path in (ROOT / top).rglob("*.py")}
    return sorted(room for room in found if room.relative_to(ROOT).parts[:2] != LINK)


ROOMS = [*folders("passes"), *folders("hlo_surgery")]
TOOLS = [*folders("tools"), *folders("examples")]
TESTS, *ROOMS_OF_TESTS = folders("tests")


def name_of(room):
    parts = room.relative_to(ROOT).parts
    return ".".join(("hlo_surgery", *parts) if parts[0] == "passes" else parts)


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_room_is_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(settings["packages"]) == sorted(map(name_of, ROOMS))


def test_rooms_are_small():
    rooms = [*ROOMS, *TOOLS, TESTS, *ROOMS_OF_TESTS]
    assert [room for room in rooms if len(list(room.glob("*.py"))) > LIMIT] == []


def test_rooms_say_what_they_are():
    files = [room / "__init__.py" for room in (*ROOMS, *TOOLS)]
    assert [file for file in files if not ast.get_docstring(ast.parse(file.read_text()))] == []


def test_rooms_of_tests_are_in_the_table():
    """They are no packages: what they are is said in the document, a row each."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("## The rooms of the tests")[1]
    rows = [line for line in table.split("##")[0].splitlines() if line.startswith("| `tests/")]
    said = "".join(row.split("|")[1] for row in rows)
    rooms = [f"`{room.relative_to(ROOT)}/`" for room in ROOMS_OF_TESTS]
    assert [room for room in rooms if room not in said] == []


def test_every_file_of_tests_that_is_marked_is_there():
    files = {path.stem for path in TESTS.rglob("test_*.py")}
    assert [name for names in MARKED.values() for name in names if name not in files] == []


def room_of(module):
    """The room of a module, of which a file at the top of the product is one, too."""
    return module.split(".")[1:3] if ".passes." in module else module.split(".")[1:2]


def test_rooms_need_each_other_in_one_order():
    """What a function imports when it is called does not count."""
    needed = {}
    for path in (path for room in ROOMS for path in room.glob("*.py")):
        own = ".".join(room_of(name_of(path.with_suffix(""))))
        tree = ast.parse(path.read_text())
        modules = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
        others = {".".join(room_of(m)) for m in modules if m.startswith("hlo_surgery.")}
        needed.setdefault(own, set()).update(others - {own})
    assert {"passes.ir", "requests", "plan"} <= needed.keys()
    tuple(graphlib.TopologicalSorter(needed).static_order())


def test_the_compiler_knows_nothing_of_the_product():
    for path in (ROOT / "passes").rglob("*.py"):
        product = [
            name
            for name in imported(path)
            if name.startswith("hlo_surgery") and not name.startswith("hlo_surgery.passes")
        ]
        assert not product, f"{path} imports {product}"
