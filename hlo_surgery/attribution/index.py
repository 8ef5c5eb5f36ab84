"""An index: rows of all training examples, in memory maps.

Digests: of an index's rows and of the data that they are of, which have to stay the same.

An index's header, `index.json`: what its rows are of, and how many are there.

Files of rows: an `.npy` file for each array, written a few rows at a time, and read by a map.

They are written as files and not through a memory map, where a full disk ends the process.
"""

import dataclasses
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from hlo_surgery.attribution.rows import Described, Rows, batch_at, block_slices, named
from hlo_surgery.dumps import write_atomically
from hlo_surgery.requests.leaves import flat_array

Digests = dict[str, int]


def digests_of(arrays: Mapping[str, Any], count: int, before: Digests) -> Digests:
    """A checksum of each array, up to a batch's first `count` examples; `before`: of those before.

    >>> x = np.arange(6.0)
    >>> digests_of({"x": x[2:]}, 4, digests_of({"x": x}, 2, {})) == digests_of({"x": x}, 6, {})
    True
    """
    return {
        name: zlib.crc32(_as_bytes(array[:count]), before.get(name, 0))
        for name, array in arrays.items()
    }


def _as_bytes(examples: Any) -> bytes:
    """Of text and other objects what they print, as their bytes are places in memory."""
    array = np.asarray(flat_array(examples))
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def first_other(data: Any, done: int, step: int, there: Digests) -> str | None:
    """The first array whose first `done` examples are others than were digested; None if none."""
    found: Digests = {}
    for start in range(0, done, step):
        places = np.arange(start, min(start + step, done))
        found = digests_of(named(batch_at(data, places)), len(places), found)
    return next((name for name, digest in found.items() if there.get(name) != digest), None)


FILE = "index.json"
FORMAT = 3
# What makes an index another one; the number of rows that are there does not.
IDENTITY = ("format", "examples", "rows", "data", "settings")


@dataclass(frozen=True)
class Header:
    """`rows` and `data`: by the paths to their arrays the shape of one example, and the dtype;
    `digests` and `row_digests`: of the data, and of the rows, of the examples that are done.
    """

    examples: int
    rows: Described
    data: Described
    settings: dict[str, Any]
    done: int = 0
    digests: Digests = field(default_factory=Digests)
    row_digests: Digests = field(default_factory=Digests)
    format: int = FORMAT


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
    """Whole, in place of what is there, with a checksum of itself."""
    found = dataclasses.asdict(header)
    text = json.dumps(found | {"digest": _own_digest(found)}, indent=1)
    write_atomically(folder / FILE, text.encode())


def _own_digest(found: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(found).encode())


def read_header(folder: Path) -> Header:
    """Raises FileNotFoundError where there is none, ValueError where it is none of ours."""
    try:
        found = json.loads((folder / FILE).read_bytes())
        if found["format"] != FORMAT or found.pop("digest") != _own_digest(found):
            raise ValueError("its format is another, or it is not what was written")
        return Header(**found)
    except (ValueError, TypeError, KeyError, RecursionError, IsADirectoryError) as problem:
        raise ValueError(
            f"{folder / FILE} is no header of an index that this version reads ({problem}); remove "
            f"{folder}, or choose another path"
        ) from None


def check_same(folder: Path, there: Header, wanted: Header) -> None:
    """Raises ValueError where what is there is another index than what is wanted."""
    for name in IDENTITY:
        old, new = getattr(there, name), getattr(wanted, name)
        if old != new:
            raise ValueError(
                f"{folder} holds another index: its {name} are {old}, not {new}; choose another "
                "path, or remove it"
            )


def create(folder: Path, header: Header) -> None:
    """Files of the size that they will have; a disk gives their rows no place before these come."""
    for i, (shape, dtype) in enumerate(header.rows.values()):
        npy.open_memmap(row_path(folder, i), "w+", np.dtype(dtype), (header.examples, *shape))


def append(file: BinaryIO, place: int, rows: np.ndarray) -> None:
    """Write rows from a place in a file on."""
    file.seek(place)
    file.write(np.ascontiguousarray(rows).tobytes())


def sync(files: Iterable[BinaryIO]) -> None:
    """Have the system write what was written."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())


def mapped(folder: Path, header: Header) -> dict[str, np.memmap]:
    """The rows by name, read as they are used. Raises ValueError for files that do not fit."""
    rows: dict[str, np.memmap] = {}
    for i, (name, (shape, dtype)) in enumerate(header.rows.items()):
        path = row_path(folder, i)
        try:
            found = rows[name] = npy.open_memmap(path, mode="r")
        except (OSError, ValueError, EOFError, TokenError) as problem:
            raise _damaged(path, problem) from None
        if (found.shape, found.dtype) != ((header.examples, *shape), dtype):
            raise ValueError(f"{path} does not hold {name}; write the index anew")
    return rows


def check_digests(rows: Mapping[str, np.memmap], header: Header) -> None:
    """Raises ValueError where the rows that are done are not those that were written."""
    own, found = {name: x[: header.done] for name, x in rows.items()}, Digests()
    for part in block_slices(own):
        found = digests_of({name: x[part] for name, x in own.items()}, header.done, found)
    for name, digest in header.row_digests.items():
        if found[name] != digest:
            raise _damaged(rows[name].filename, "its rows are not those that were written")


def row_path(folder: Path, number: int) -> Path:
    """Where the rows of one array are, by its number in the header."""
    return folder / f"rows_{number}.npy"


def _damaged(path: Any, problem: object) -> ValueError:
    folder = Path(path).parent
    return ValueError(f"{path} is damaged ({problem}); remove {folder}, and write it anew")


@dataclass(frozen=True)
class Index:
    """Rows of N examples, read from disk as they are used.

    `rows`: by the path to each array in what f returned (`"rows"` of one array alone) a read-only
    memory map [N, ...]; `settings`: those that it was written with.

    >>> import numpy as np
    >>> index = Index(Path("here"), {"['w']": np.ones((5, 2, 2))}, {})
    >>> len(index), index
    (5, Index(path=PosixPath('here'), settings={}))
    """

    path: Path
    rows: Rows = field(repr=False)
    settings: dict[str, Any]

    def __len__(self) -> int:
        """The number of examples."""
        return len(next(iter(self.rows.values())))


def open_index(path: str | os.PathLike[str]) -> Index:
    """An index that `write_index` has written, read-only. All rows are read once, for a checksum.

    Raises FileNotFoundError where there is none, and ValueError where rows are missing or files are
    damaged.

    >>> import tempfile
    >>> import numpy as np
    >>> from hlo_surgery.attribution import write_index
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_index(lambda x: x, np.eye(3), folder)
    ...     print(open_index(folder).rows["rows"][1])
    [0. 1. 0.]
    """
    folder = Path(path)
    if not (folder / FILE).exists():
        raise FileNotFoundError(
            f"{folder} is no index; hlo_surgery.attribution.write_index makes one"
        )
    header = read_header(folder)
    if header.done < header.examples:
        raise ValueError(
            f"{folder} has rows of {header.done} of {header.examples} examples; call write_index "
            "again with the same arguments, and it goes on"
        )
    rows = mapped(folder, header)
    check_digests(rows, header)
    return Index(folder, dict(rows), header.settings)


def check_index(function: str, index: Index) -> Index:
    """The index itself. Raises TypeError for what is none, as the path of one."""
    if not isinstance(index, Index):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"{function} takes an index, not {index!r}; open_index(path) opens the one at a path"
        )
    return index
