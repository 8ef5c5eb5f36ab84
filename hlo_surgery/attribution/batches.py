"""Batches: what lies at some places of a pytree of arrays that go over the same examples."""

from typing import Any

import jax
import numpy as np

from hlo_surgery.attribution.named_rows import named


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
    return jax.tree.map(lambda leaf: _picked(leaf, places), data)


def _picked(leaf: Any, places: np.ndarray) -> Any:
    """What slices to NumPy's arrays may be a file, which takes slices alone."""
    if not isinstance(leaf[0:1], np.ndarray):
        return leaf[places]
    return np.concatenate([leaf[place : place + 1] for place in places.tolist()])


def places_from(start: int, size: int, examples: int) -> np.ndarray:
    """[size]: examples from `start` on, the last one again where they end: one shape, compiled
    once.
    """
    return np.minimum(np.arange(start, start + size), examples - 1)
