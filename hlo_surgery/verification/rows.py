"""Rows in verification: inputs in which ids leave out the rows of some examples.

Where rows of several examples lie one behind the other, no batch of copies of one can be made: rows
are left out, by ids of nobody.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hlo_surgery.requests.request import Request
from hlo_surgery.verification.inputs import Arrays, Order


def with_ids(arrays: Arrays, request: Request) -> Arrays:
    """Random inputs whose ids are ids: each example has rows, as many as the others, in order."""
    found = list(arrays)
    for number in set(request.segments.values()):
        ids = np.arange(arrays[number].size, dtype=np.int64) % request.size
        found[number] = np.sort(ids).reshape(arrays[number].shape).astype(arrays[number].dtype)
    return found


def only_rows_of(arrays: Sequence[Any], request: Request, kept: Order) -> Arrays:
    """The inputs with the rows of these examples alone.

    The ids of all others are negative, and so nobody's; a lookup that counts them from behind, as
    those of JAX do, finds an example that has rows.
    """
    numbers = set(request.segments.values())
    return [
        _only(a, request.size, kept) if i in numbers else a
        for i, a in enumerate(map(np.asarray, arrays))
    ]


def _only(ids: np.ndarray[Any, Any], size: int, kept: Order) -> np.ndarray[Any, Any]:
    left = np.intersect1d(kept, ids)
    other = (left[0] if len(left) else 0) - size
    return np.where(np.isin(ids, kept), ids, other).astype(ids.dtype)
