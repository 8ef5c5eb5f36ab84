"""Rows as f computes them, and what they must be: one for each example, and of it alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hlo_surgery.attribution.named_rows import Rows, named

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
    if like is not None and _kinds(found) != _kinds(like):
        raise ValueError(
            f"f returned {_kinds(found)} of examples {listed(places.tolist())}, and "
            f"{_kinds(like)} of the first batch; rows have one shape"
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


def _kinds(rows: Rows) -> dict[str, Any]:
    return {name: (x.shape[1:], str(x.dtype)) for name, x in rows.items()}


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
