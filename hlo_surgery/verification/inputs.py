"""Inputs for verification: drawn where none are given; batches made of another's examples.

Padding in verification: which examples are real, and results with rows for the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hlo_surgery.module import Port
from hlo_surgery.requests.gradient_outputs import is_inexact
from hlo_surgery.requests.request import Request
from hlo_surgery.verification.tolerances import Array, widened

Arrays = list[Array]
Order = np.ndarray[Any, np.dtype[np.int64]]


def draw_inputs(arguments: Sequence[Port], seed: int = 0) -> Arrays:
    """Random arrays: normal floats of deviation 0.5, booleans, and integers 0 or 1, valid as any
    token or label. Raises ValueError for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; it is an integer of 0 or more")
    generator = np.random.default_rng(seed)
    return [_draw(generator, port) for port in arguments]


def _draw(generator: np.random.Generator, port: Port) -> Array:
    if not is_inexact(port):
        return generator.integers(0, 2, port.shape).astype(port.dtype)
    numbers = 0.5 * generator.normal(size=(2, *port.shape))
    drawn = numbers[0] + 1j * numbers[1] if port.dtype.kind == "c" else numbers[0]
    return drawn.astype(port.dtype)


def pick_examples(arrays: Sequence[Any], batch: Mapping[int, int], order: Order) -> Arrays:
    """The batch whose example i is example order[i] of the given one, with all its rows. `batch`:
    example axis by argument number.
    """
    given = enumerate(map(np.asarray, arrays))
    return [_picked(a, batch[i], order) if i in batch else a for i, a in given]


def _picked(array: Array, axis: int, order: Order) -> Array:
    rows = array.shape[axis] // len(order)
    places = np.asarray(order)[:, None] * rows + np.arange(rows)
    return np.take(array, places.ravel(), axis)


def perturbed(
    arrays: Sequence[Any], relative: float, seed: int, flags: int | None = None
) -> Arrays:
    """Every float moved up or down by this part of itself, as one rounding would; `seed`: which go
    up.

    `flags`: the number of an array that stays, as no rounding makes a flag another.
    """
    generator = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        signs = generator.choice([-1.0, 1.0], array.shape)
        return (widened(array) * (1 + relative * signs)).astype(array.dtype)

    given = enumerate(map(np.asarray, arrays))
    return [moved(a) if is_inexact(a) and i != flags else a for i, a in given]


def disjoint_changes(size: int) -> Iterator[tuple[Order, Order]]:
    """Pairs of orders that change disjoint sets of examples: the halves, even and odd numbers,
    first and last.

    Halves show a mixing of all examples, whose trace in two single ones vanishes as the batch
    grows.
    """
    same, half = np.arange(size), size // 2
    for left, right, distance in (
        (same[:half], same[half : 2 * half], half),
        (same[: size - size % 2 : 2], same[1::2], 1),
        (same[:1], same[-1:], 1),
    ):
        first, second = same.copy(), same.copy()
        first[left] += distance
        second[right] -= distance
        yield first, second


def with_flags(arrays: Arrays, request: Request) -> Arrays:
    """Random inputs whose flags are flags: about half of the examples are real, two at least where
    there are two.
    """
    if request.is_real is None:
        return arrays
    flags = np.zeros_like(arrays[request.is_real])
    flags[::2] = flags[:2] = 1
    return [flags if i == request.is_real else array for i, array in enumerate(arrays)]


def real_examples(request: Request, inputs: Sequence[Any]) -> Order:
    """The numbers of the examples that are no padding, ascending. Raises ValueError where there is
    none.
    """
    if request.is_real is None:
        return np.arange(request.size)
    flags = np.asarray(inputs[request.is_real])
    if not np.isin(flags, (0, 1)).all():
        raise ValueError(
            "the argument that says which examples are real must hold flags or 0/1 alone"
        )
    if not flags.any():
        raise ValueError(
            "no example of these inputs is real, so that there is nothing to verify; give it others"
        )
    return np.flatnonzero(flags)


def with_zeros(array: Array, shape: Sequence[int], real: Order) -> Array:
    """What was found for the real examples, with zeros for padding along each axis that is of
    examples in `shape`.
    """
    if array.shape == tuple(shape):
        return array
    whole = np.zeros(shape, array.dtype)
    pairs = zip(array.shape, shape, strict=True)
    whole[np.ix_(*(np.arange(n) if n == size else real for n, size in pairs))] = array
    return whole
