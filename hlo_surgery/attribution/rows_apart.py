"""Rows apart from their batch: whether f's row of an example is the same in other batches.

Two batches are mixed, of the first and the last examples and of some from all over the data. Rows
that are in both, or in a batch as it is written, are compared.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hlo_surgery.attribution.batches import batch_from_all_over
from hlo_surgery.attribution.computed_rows import Function, computed_rows, first_unlike, listed
from hlo_surgery.attribution.named_rows import Rows

Check = Callable[[Rows, np.ndarray], None]


def mixed_rows(f: Function, data: Any, examples: int, first: Rows) -> Check:
    """What checks the rows of a batch, at these places, against those of mixed batches.

    f is called twice, with batches of the size of the first. The check raises ValueError where a
    row is another one by more than rounding, and has been done of the first batch, and of the two.
    """
    size = len(next(iter(first.values())))
    half = size // 2
    spread = spread_places(examples, half)
    mixed: list[tuple[np.ndarray, Rows]] = []

    def check(rows: Rows, places: np.ndarray) -> None:
        for own, found in mixed:
            _check_same(found, own, rows, places)

    check(first, np.arange(size))
    for others in (np.arange(size - half), np.arange(examples - (size - half), examples)):
        places = np.concatenate([others, spread])
        found = computed_rows(f, batch_from_all_over(data, places), places, first)
        check(found, places)
        mixed.append((places, found))
    return check


def spread_places(examples: int, count: int) -> np.ndarray:
    """[count]: one place of each of as many stretches of the data, drawn, the same every time."""
    bounds = np.linspace(0, examples, count + 1)
    drawn = np.random.default_rng(0).uniform(bounds[:-1], bounds[1:])
    return np.minimum(drawn.astype(int), examples - 1)


def _check_same(expected: Rows, own: np.ndarray, rows: Rows, places: np.ndarray) -> None:
    shared, there, here = np.intersect1d(own, places, return_indices=True)
    if not shared.size:
        return
    name = first_unlike(_at(rows, here), _at(expected, there), expected)
    if name is not None:
        raise ValueError(
            f"f's rows of examples {listed(shared.tolist())} are others in {name} in other "
            "batches, so that an index of them would rest on the batches. Does f divide by a sum "
            "over its batch, such as that of its masks? Have its loss be a mean over the batch of "
            "each example's own, or say which examples count by hs.grad(..., is_real=)"
        )


def _at(rows: Rows, places: np.ndarray) -> Rows:
    return {name: x[places] for name, x in rows.items()}
