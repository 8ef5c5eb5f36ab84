"""An index's header, `index.json`: what its rows are of, and how many are there."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hlo_surgery.whole_files import write_atomically

FILE = "index.json"
FORMAT = 1
# What makes an index another one; the number of rows that are there does not.
IDENTITY = ("format", "examples", "rows", "data", "settings")


@dataclass(frozen=True)
class Header:
    """`rows` and `data`: by the paths to their arrays the shape of one example, and the dtype;
    `digests`: of the data of the examples that are done.
    """

    examples: int
    rows: dict[str, list[Any]]
    data: dict[str, list[Any]]
    settings: dict[str, Any]
    done: int = 0
    digests: dict[str, int] = field(default_factory=dict[str, int])
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
    text = (folder / FILE).read_bytes()
    try:
        header = Header(**json.loads(text))
        _check_kinds(header)
    except (TypeError, ValueError):
        raise ValueError(
            f"{folder / FILE} is no header of an index; remove {folder}, or choose another path"
        ) from None
    if header.format != FORMAT:
        raise ValueError(f"{folder} has the format {header.format}, and {FORMAT} is what is read")
    return header


def _check_kinds(header: Header) -> None:
    """Raises TypeError or ValueError where what a file says is nothing that is written."""
    if not (isinstance(header.rows, dict) and 0 <= header.done <= header.examples and header.rows):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError
    for shape, dtype in header.rows.values():
        np.empty((0, *shape), dtype)


def check_same(folder: Path, there: Header, wanted: Header) -> None:
    """Raises ValueError where what is there is another index than what is wanted."""
    for name in IDENTITY:
        old, new = getattr(there, name), getattr(wanted, name)
        if old != new:
            raise ValueError(
                f"{folder} holds another index: its {name} are {old}, not {new}; choose another "
                "path, or remove it"
            )
