"""Files of rows: an `.npy` file for each array, written a few rows at a time, mapped when whole.

They are written as files and not through a memory map, where a full disk ends the process.
"""

import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from hlo_surgery.attribution.blocks import BLOCK_BYTES
from hlo_surgery.attribution.digests import Digests
from hlo_surgery.attribution.header import Header
from hlo_surgery.attribution.named_rows import Rows


class RowFile(NamedTuple):
    """Where the rows of one array lie: the shape of one, and their dtype."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype


def row_files(folder: Path, header: Header) -> list[RowFile]:
    """A file for each array of an index."""
    return [
        RowFile(name, folder / f"rows_{i}.npy", tuple(shape), np.dtype(dtype))
        for i, (name, (shape, dtype)) in enumerate(header.rows.items())
    ]


def create(files: Iterable[RowFile], examples: int) -> None:
    """Files that say what they will hold, without a row."""
    for path, shape, dtype in (one[1:] for one in files):
        descr = npy.dtype_to_descr(dtype)
        whole = {"descr": descr, "fortran_order": False, "shape": (examples, *shape)}
        with path.open("wb") as file:
            npy.write_array_header_1_0(file, whole)


def append(file: BinaryIO, start: int, rows: np.ndarray) -> None:
    """Write rows behind the first `start` of them."""
    _skip_header(file)
    file.seek(start * rows[0].nbytes, os.SEEK_CUR)
    file.write(np.ascontiguousarray(rows).tobytes())


def sync(files: Sequence[BinaryIO]) -> None:
    """Have the system write what was written."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())


def mapped(files: Iterable[RowFile], examples: int) -> Rows:
    """The rows by name, read as they are used. Raises ValueError for files that do not fit."""
    rows: Rows = {}
    for name, path, shape, dtype in files:
        try:
            found = npy.open_memmap(path, mode="r")
        except (OSError, ValueError, EOFError, TokenError) as problem:
            raise _damaged(path, problem) from None
        if (found.shape, found.dtype) != ((examples, *shape), dtype):
            raise ValueError(f"{path} does not hold {name}; write the index anew")
        rows[name] = found
    return rows


def first_rows(files: Iterable[RowFile], count: int) -> Rows:
    """The first rows, of files that may not be whole. Raises ValueError where they are missing."""
    rows: Rows = {}
    for name, path, shape, dtype in files:
        try:
            with path.open("rb") as file:
                _skip_header(file)
                numbers = np.fromfile(file, dtype, count * math.prod(shape))
        except (OSError, ValueError, TokenError) as problem:
            raise _damaged(path, problem) from None
        if numbers.size != count * math.prod(shape):
            raise _damaged(path, "it ends too early")
        rows[name] = numbers.reshape(count, *shape)
    return rows


def check_digests(files: Iterable[RowFile], count: int, there: Digests) -> None:
    """Raises ValueError where the first rows, which are there, are not those that were written."""
    for name, path, shape, dtype in files:
        with path.open("rb") as file:
            _skip_header(file)
            digest = _digest(file, count * math.prod(shape) * dtype.itemsize)
        if digest != there[name]:
            raise _damaged(path, "its rows are not those that were written")


def _digest(file: BinaryIO, size: int) -> int:
    """Of as many bytes from here on."""
    digest = 0
    for start in range(0, size, BLOCK_BYTES):
        digest = zlib.crc32(file.read(min(BLOCK_BYTES, size - start)), digest)
    return digest


def _damaged(path: Path, problem: object) -> ValueError:
    return ValueError(f"{path} is damaged ({problem}); remove {path.parent}, and write it anew")


def _skip_header(file: BinaryIO) -> None:
    file.seek(0)
    npy.read_magic(file)
    npy.read_array_header_1_0(file)
