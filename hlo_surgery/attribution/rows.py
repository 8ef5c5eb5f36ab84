"""Rows by name: a pytree of arrays [B, ...] as a dict, by the path to each array.

Batches: what lies at some places of a pytree of arrays that go over the same examples.

Blocks: rows of a few examples at a time, as matrices, so that memory is bounded.

Rows as f computes them, and what they must be: one for each example, and of it alone.

Rows apart from their batch: whether f's row of an example is the same in other batches.

Two batches are mixed, of the first and the last examples and of some from all over the data. Rows
that are in both, or in a batch as it is written, are compared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr

# Of a single array, to which no path leads.
ALONE = "rows"
Rows = dict[str, np.ndarray]
# By name, the shape of one example and the dtype, as JSON has them.
Described = dict[str, list[Any]]


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by the paths to them."""
    return {keystr(path) or ALONE: leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def count_of(rows: Rows) -> int:
    """How many examples they are of."""
    return len(next(iter(rows.values())))


def rows_like(shapes: Mapping[str, Sequence[int]], tree: Any) -> Rows:
    """A pytree's rows by name, or those of a dict that is by name already, each [Q, *shape].

    Raises ValueError for other names or shapes, and where a number is complex or not finite.
    """
    is_by_name = isinstance(tree, Mapping) and set(tree) == set(shapes)
    found = dict(tree) if is_by_name else named(tree)
    if set(found) != set(shapes):
        raise ValueError(
            f"queries have {sorted(found)}, and the index has {sorted(shapes)}; pass what the "
            "function that the index was written with returns of the queries"
        )
    rows = {name: np.asarray(found[name]) for name in shapes}
    count = next((len(x) for x in rows.values() if x.ndim), 0)
    for name, values in rows.items():
        if values.shape != (count, *shapes[name]):
            raise ValueError(
                f"queries have {name} of shape {values.shape}, not {(count, *shapes[name])}; pass "
                "what the function that the index was written with returns of the queries"
            )
        if np.iscomplexobj(values):
            raise ValueError(f"queries have {name} of {values.dtype}; rows are real numbers")
        if not np.isfinite(values).all():
            raise ValueError(f"queries have numbers in {name} that are not finite")
    return rows


def number_of_examples(data: Any) -> int:
    """The common length. Raises ValueError where there is none."""
    lengths: dict[str, int] = {}
    for name, leaf in named(data).items():
        shape = getattr(leaf, "shape", None)
        if not shape:
            raise ValueError(
                f"data has {type(leaf).__name__} {name} without examples; it is a pytree of arrays "
                "[N, ...], one row for each example: close over what is none in f"
            )
        lengths[name] = int(shape[0])
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(
            f"data has arrays of {lengths or 'no'} examples; all go over the same, one or more"
        )
    return next(iter(lengths.values()))


def batch_at(data: Any, places: np.ndarray) -> Any:
    """The examples at these places, one of which may be there several times.

    What lies between the first and the last is read as a slice, which files are quick at.
    """
    first, last = int(places.min()), int(places.max())
    return jax.tree.map(lambda leaf: leaf[first : last + 1][places - first], data)


def batch_from_all_over(data: Any, places: np.ndarray) -> Any:
    """As `batch_at`, of places far apart: what lies between them is not read."""

    def picked(leaf: Any) -> Any:
        # What slices to NumPy's arrays may be a file, which takes slices alone.
        if not isinstance(leaf[0:1], np.ndarray):
            return leaf[places]
        return np.concatenate([leaf[place : place + 1] for place in places.tolist()])

    return jax.tree.map(picked, data)


def places_from(start: int, size: int, examples: int) -> np.ndarray:
    """[size]: examples from `start` on, the last one again where they end: one shape, compiled
    once.
    """
    return np.minimum(np.arange(start, start + size), examples - 1)


BLOCK_BYTES = 1 << 26


def block_slices(rows: Rows) -> list[slice]:
    """Slices of the examples, each of `BLOCK_BYTES` at most, or of one example."""
    count = count_of(rows)
    total = sum(x.nbytes for x in rows.values())
    size = max(1, BLOCK_BYTES * count // max(1, total))
    return [slice(start, start + size) for start in range(0, count, size)]


def matrix(rows: Rows, names: Sequence[str], part: slice = slice(None)) -> np.ndarray:
    """[n, d]: some examples' rows of these arrays, flat, one array beside the other."""
    own = [np.asarray(rows[name][part]) for name in names]
    return np.concatenate([x.reshape(len(x), math.prod(x.shape[1:])) for x in own], axis=1)


# How far the same rows may be apart by another device's rounding, as a part of rows' usual length.
# Rows of another model or seed are as far apart as they are long.
ROUNDING = 1e-2
# Gradients that are zero but for rounding, as those of the biases of attention's keys, are shorter
# than this beside the others, and differ by their own length.
NOISE = 1e-3
Function = Callable[[Any], Any]


def computed_rows(f: Function, batch: Any, places: np.ndarray, like: Rows | None = None) -> Rows:
    """f's rows of a batch, the examples at these places, by name, [places, ...].

    Raises ValueError for what is not a float for each example, or not finite, or of other names,
    shapes or dtypes than `like`.
    """
    found = {name: _as_rows(name, leaf) for name, leaf in named(f(batch)).items()}
    if not found:
        raise ValueError("f returns no arrays; it returns a pytree of arrays [B, ...]")
    for name, rows in found.items():
        _check(name, rows, places)
    if like is not None and described(found) != described(like):
        raise ValueError(
            f"f returned {described(found)} of examples {listed(places.tolist())}, and "
            f"{described(like)} of the first batch; rows have one shape"
        )
    return found


def _as_rows(name: str, leaf: Any) -> np.ndarray:
    """As NumPy's floats: bfloat16 is none, and float32 holds its numbers."""
    rows = np.asarray(leaf)
    if rows.dtype.name == "bfloat16":
        return rows.astype(np.float32)
    if rows.dtype.kind != "f":
        raise ValueError(f"f returns {name} of {rows.dtype}; rows are real floats")
    return rows


def _check(name: str, rows: np.ndarray, places: np.ndarray) -> None:
    if rows.shape[:1] != places.shape or not rows.size:
        raise ValueError(
            f"f returns {name} of shape {rows.shape} for {len(places)} examples; it returns a row "
            "for each, [B, ...]: of hs.grad pass on the statistics, without the gradient"
        )
    finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    if not finite.all():
        wrong = sorted(set(places[~finite].tolist()))
        raise ValueError(
            f"f returns numbers that are not finite in {name} of examples {listed(wrong)}; look "
            "at these, or have f return zeros where rows are to count for nothing"
        )


def listed(places: list[int]) -> str:
    """A few of them, as text."""
    return ", ".join(map(str, places[:5])) + (", ..." if len(places) > 5 else "")


def described(arrays: Mapping[str, Any]) -> Described:
    """The shape of one example and the dtype, by name, as JSON has them."""
    return {name: [list(array.shape[1:]), str(array.dtype)] for name, array in arrays.items()}


def first_unlike(found: Rows, expected: Rows, usual_rows: Rows) -> str | None:
    """The first array whose rows are others by more than rounding, which is a part of the length
    of the usual rows; None where all are the same.
    """
    usual = {name: float(np.sqrt(np.mean(_lengths(x) ** 2))) for name, x in usual_rows.items()}
    longest = max(usual.values())
    for name, rows in expected.items():
        allowed = ROUNDING * max(usual[name], NOISE * longest)
        if _lengths(found[name].astype(np.float64) - rows).max() > allowed:
            return name
    return None


def _lengths(rows: np.ndarray) -> np.ndarray:
    """[B]: Euclidean."""
    return np.linalg.norm(np.asarray(rows, np.float64).reshape(len(rows), -1), axis=1)


Check = Callable[[Rows, np.ndarray], None]


def mixed_rows(f: Function, data: Any, examples: int, first: Rows) -> Check:
    """What checks the rows of a batch, at these places, against those of mixed batches.

    f is called twice, with batches of the size of the first. The check raises ValueError where a
    row is another one by more than rounding, and has been done of the first batch, and of the two.
    """
    size = count_of(first)
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
    if name:
        raise ValueError(
            f"f's rows of examples {listed(shared.tolist())} are others in {name} in other "
            "batches, so that an index of them would rest on the batches. Does f divide by a sum "
            "over its batch, such as that of its masks? Have its loss be a mean over the batch of "
            "each example's own, or say which examples count by hs.grad(..., is_real=)"
        )


def _at(rows: Rows, places: np.ndarray) -> Rows:
    return {name: x[places] for name, x in rows.items()}
