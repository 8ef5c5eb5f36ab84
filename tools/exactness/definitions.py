"""What statistics are by definition, in NumPy, of the examples' own gradients.

Each is a statistic and how far what it found is off, beside the size of what it should have found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import hlo_surgery as hs
from tools.exactness.cases import Array, Arrays, deviation
from tools.exactness.projections_by_definition import projections_of

K, SEED, DIRECTIONS = 4, 3, 2
Outputs = Sequence[Any]


@dataclass(frozen=True)
class Definition:
    """`off(found, own)`: of the statistic's outputs and the own gradients [B, ...]."""

    statistic: Any
    off: Callable[[Outputs, Arrays], float]


def definitions(own: Arrays) -> dict[str, Definition]:
    bound = float(np.median(lengths(own))) or 1.0
    return {
        "projected": Definition(hs.projected(K, SEED), projected_off),
        "sum_of": Definition(hs.sum_of(stretched), sum_off),
        "clipped_second_moment": Definition(
            hs.clipped_second_moment(bound), lambda found, own: clipped_off(found, own, bound)
        ),
        "top_directions": Definition(hs.top_directions(DIRECTIONS), directions_off),
        "noise_scale": Definition(hs.noise_scale(), noise_off),
    }


def lengths(own: Arrays) -> Array:
    """[B], the norms of whole gradients."""
    return np.sqrt(sum((g.reshape(len(g), -1) ** 2).sum(1) for g in own))


def stretched(g: Any) -> Any:
    """A function of one parameter's gradient that is none of single elements."""
    return g * jnp.sqrt(jnp.sum(g * g))


def sum_off(found: Outputs, own: Arrays) -> float:
    each = [np.sqrt((g.reshape(len(g), -1) ** 2).sum(1)) for g in own]
    return deviation(found, [np.tensordot(n, g, 1) for n, g in zip(each, own, strict=True)])


def projected_off(found: Outputs, own: Arrays) -> float:
    """Beside the gradients' norms: of sums with signs the terms are as large."""
    wanted = [projections_of(g, K, SEED, i) for i, g in enumerate(own)]
    sizes = [np.linalg.norm(g.reshape(len(g), -1), axis=1).max() for g in own]
    least = 1e-3 * max(sizes) or 1.0
    errors = [
        deviation([f], [w]) * (np.abs(w).max(initial=0) or 1.0) / max(size, least)
        for f, w, size in zip(found, wanted, sizes, strict=True)
    ]
    return max(errors)


def clipped_off(found: Outputs, own: Arrays, bound: float) -> float:
    norms = lengths(own)
    factors = np.minimum(1, bound / np.where(norms == 0, 1, norms)) ** 2
    return deviation(found, [np.tensordot(factors, g**2, 1) / len(g) for g in own])


def directions_off(found: Outputs, own: Arrays) -> float:
    """Singular values, orthonormal directions, and that each has its value as its length."""
    rows = np.concatenate([g.reshape(len(g), -1) for g in own], 1)
    wanted = np.linalg.svd(rows, compute_uv=False)[:DIRECTIONS]
    values, parts = np.asarray(found[0]), [np.asarray(x, np.float64) for x in found[1:]]
    flat = np.concatenate([x.reshape(len(x), -1) for x in parts], 1)
    told = values > 0
    reached = np.linalg.norm(rows @ flat.T, axis=0)
    products = flat @ flat.T - np.diag(told)
    # Squares of values are as exact as inner products, and so are directions.
    lost = (values == 0) & (wanted < 2e-3 * wanted[0])
    off = np.abs(np.stack([values, reached]) - wanted)[:, ~lost].max(initial=0)
    ratio = (wanted[0] / np.where(told, values, wanted[0])).max() ** 2
    return float(max(off / wanted[0], np.abs(products).max() / ratio))


def noise_off(found: Outputs, own: Arrays) -> float:
    size = len(own[0])
    mean = sum((g.mean(0) ** 2).sum() for g in own)
    squares = (lengths(own) ** 2).mean()
    variance = (squares - mean) * size / (size - 1)
    wanted = variance, mean - variance / size
    return float(np.abs(np.array(found, np.float64) - wanted).max() / (squares or 1.0))
