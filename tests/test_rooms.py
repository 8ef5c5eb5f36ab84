"""Rooms: each is installed, holds 15 files at most, says what it is, and looks down only."""

import ast
import pathlib
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = sorted(
    path.parent
    for top in ("passes", "hlo_surgery")
    for path in (ROOT / top).rglob("__init__.py")
    if not (top == "hlo_surgery" and "passes" in path.relative_to(ROOT).parts)
)


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


@pytest.mark.parametrize("room", ROOMS, ids=map(name_of, ROOMS))
def test_a_room_is_small_and_says_what_it_is(room):
    files = list(room.glob("*.py"))
    assert len(files) <= 15
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


def test_the_compiler_knows_nothing_of_the_product():
    for path in (ROOT / "passes").rglob("*.py"):
        product = [
            name
            for name in imported(path)
            if name.startswith("hlo_surgery") and not name.startswith("hlo_surgery.passes")
        ]
        assert not product, f"{path} imports {product}"
