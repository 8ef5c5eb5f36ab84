"""An index's header, `index.json`: what its rows are of, and how many are there."""

import dataclasses
import json
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hlo_surgery.whole_files import write_atomically

FILE = "index.json"
FORMAT = 2
# What makes an index another one; the number of rows that are there does not.
IDENTITY = ("format", "examples", "rows", "data", "settings")


@dataclass(frozen=True)
class Header:
    """`rows` and `data`: by the paths to their arrays the shape of one example, and the dtype;
    `digests` and `row_digests`: of the data, and of the rows, of the examples that are done.
    """

    examples: int
    rows: dict[str, list[Any]]
    data: dict[str, list[Any]]
    settings: dict[str, Any]
    done: int = 0
    digests: dict[str, int] = field(default_factory=dict[str, int])
    row_digests: dict[str, int] = field(default_factory=dict[str, int])
    format: int = FORMAT


def described(arrays: dict[str, Any]) -> dict[str, list[Any]]:
    """The shape of one example and the dtype, by name, as JSON has them."""
    return {name: [list(array.shape[1:]), str(array.dtype)] for name, array in arrays.items()}


def plain_settings(settings: Any) -> dict[str, Any]:
    """As JSON gives them back. Raises TypeError for what JSON does not hold."""
    if not isinstance(settings, dict):
        raise TypeError(f"settings is {settings!r}; pass a dict, such as {{'seed': 0}}")
    try:
        return json.loads(json.dumps(settings))
    except (TypeError, ValueError) as problem:
        raise TypeError(
            f"settings are kept as JSON, which has no place for some of them ({problem}); pass "
            "numbers, text, lists and dicts"
        ) from None


def write_header(folder: Path, header: Header) -> None:
    """Whole, in place of what is there."""
    text = json.dumps(dataclasses.asdict(header), indent=1)
    write_atomically(folder / FILE, text.encode())


def read_header(folder: Path) -> Header:
    """Raises FileNotFoundError where there is none, ValueError where it is none of ours."""
    try:
        found = _parsed(folder / FILE)
        _check_names(found)
        header = Header(**found)
        _check_kinds(header)
    except (ValueError, RecursionError, IsADirectoryError) as problem:
        raise ValueError(
            f"{folder / FILE} is no header of an index that this version reads ({problem}); remove "
            f"{folder}, or choose another path"
        ) from None
    return header


def _parsed(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"it is {reprlib.repr(found)}")
    return found


def _check_names(found: dict[str, Any]) -> None:
    """The format first: another one may have other names."""
    if found.get("format") != FORMAT:
        raise ValueError(f"it has the format {found.get('format')!r}, not {FORMAT}")
    names = {one.name for one in dataclasses.fields(Header)}
    if set(found) != names:
        raise ValueError(f"it has {sorted(found)}, not {sorted(names)}")


def _check_kinds(header: Header) -> None:
    """Raises ValueError where what a file says is nothing that is written."""
    for name in ("examples", "done"):
        _check_kind(name, getattr(header, name), int)
    if not 0 <= header.done <= header.examples:
        raise ValueError(f"{header.done} of {header.examples} examples are done")
    for name in ("rows", "data", "settings", "digests", "row_digests"):
        _check_kind(name, getattr(header, name), dict)
    if not header.rows:
        raise ValueError("it has no rows")
    for name, row in header.rows.items():
        _check_row(name, row)
    _check_digests("digests", header.digests, header.data if header.done else {})
    _check_digests("row_digests", header.row_digests, header.rows if header.done else {})


def _check_kind(name: str, found: Any, kind: type) -> None:
    if type(found) is not kind:
        raise ValueError(f"its {name} is {reprlib.repr(found)}, and no {kind.__name__}")


def _check_row(name: str, row: Any) -> None:
    try:
        shape, dtype = row
        is_row = np.dtype(dtype).kind == "f" and isinstance(shape, list)
        is_row = is_row and all(type(n) is int and n > 0 for n in shape)
    except (TypeError, ValueError, SyntaxError):
        is_row = False
    if not is_row:
        raise ValueError(f"its rows {name} are {reprlib.repr(row)}, and no shape and float dtype")


def _check_digests(name: str, found: dict[str, Any], of: dict[str, Any]) -> None:
    if set(found) != set(of) or not all(type(digest) is int for digest in found.values()):
        raise ValueError(f"its {name} are {reprlib.repr(found)}, and no integers of {sorted(of)}")


def check_same(folder: Path, there: Header, wanted: Header) -> None:
    """Raises ValueError where what is there is another index than what is wanted."""
    for name in IDENTITY:
        old, new = getattr(there, name), getattr(wanted, name)
        if old != new:
            raise ValueError(
                f"{folder} holds another index: its {name} are {old}, not {new}; choose another "
                "path, or remove it"
            )
