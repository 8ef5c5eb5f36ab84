"""Blocks: rows of a few examples at a time, as matrices, so that memory is bounded."""

import math
from collections.abc import Sequence

import numpy as np

from hlo_surgery.attribution.named_rows import Rows

BLOCK_BYTES = 1 << 26


def block_slices(rows: Rows) -> list[slice]:
    """Slices of the examples, each of `BLOCK_BYTES` at most, or of one example."""
    count = len(next(iter(rows.values())))
    each = sum(x.nbytes for x in rows.values()) // count
    size = max(1, BLOCK_BYTES // each)
    return [slice(start, start + size) for start in range(0, count, size)]


def matrix(rows: Rows, names: Sequence[str], part: slice = slice(None)) -> np.ndarray:
    """[n, d]: some examples' rows of these arrays, flat, one array beside the other."""
    own = [np.asarray(rows[name][part]) for name in names]
    return np.concatenate([x.reshape(len(x), math.prod(x.shape[1:])) for x in own], axis=1)
