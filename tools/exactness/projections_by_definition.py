"""Projections by their definition, in float64 NumPy, from the project's signs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hlo_surgery.passes.measures.projections import (
    DIMENSIONS,
    OUTPUTS,
    random_signs,
)

Array = np.ndarray[Any, Any]


def signs(seed: int, place: Sequence[int], count: int, k: int) -> Array:
    return np.asarray(random_signs(seed, place, count, k), np.float64)


def along(seed: int, k: int, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """[elements, k]: for each element the product of its dimensions' signs."""
    wide = [d for d in dims if shape[d] > 1]
    drawn = {d: signs(seed, (DIMENSIONS, len(shape) - d), shape[d], k) for d in wide}
    rows = [
        np.prod([own[place[d]] for d, own in drawn.items()], axis=0)
        for place in np.ndindex(*shape)
        if all(place[d] == 0 for d in range(len(shape)) if d not in dims)
    ]
    return np.broadcast_to(rows, (len(rows), k)) if drawn else np.ones((1, k))


def halves(shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """The split of a shape in two with the fewest elements in both together."""
    dims = list(range(len(shape)))
    if sum(size > 1 for size in shape) < 2:
        return dims, []
    cost = {s: math.prod(shape[:s]) + math.prod(shape[s:]) for s in dims[1:]}
    split = min(cost, key=lambda s: (cost[s], s))
    return dims[:split], dims[split:]


def projections_of(own: Any, k: int, seed: int = 0, output: int = 0) -> Array:
    """[B, k, k] or [B, k], of gradients [B, *parameter] of the output of this number."""
    own, shape = np.asarray(own), own.shape[1:]
    first, second = halves(shape)
    left = along(seed, k, shape, first)
    matrices = own.reshape(len(own), len(left), -1)
    if not second:
        return (
            np.einsum("bxy,xi->bi", matrices, left) / k**0.5 * signs(seed, (OUTPUTS, output), 1, k)
        )
    right = along(seed, k, shape, second)
    found = np.einsum("bxy,xi,yj->bij", matrices, left, right) / k
    return found * signs(seed, (OUTPUTS, output), k, k)
