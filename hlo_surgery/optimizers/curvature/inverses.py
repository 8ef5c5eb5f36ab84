"""Inverses: of damped Kronecker factors, and a gradient between them."""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.measures.kronecker import KroneckerFactors, stacked_axes


def inverses_of(found: Any, damping: jax.Array) -> Any:
    """Inverses like the factors, damped; of a diagonal like the parameter one over it.

    >>> left, right = inverses_of(KroneckerFactors(4 * jnp.eye(2), jnp.eye(3)), jnp.array(1.0))
    >>> two = lambda side: [round(float(x), 2) for x in jnp.diagonal(side)]
    >>> two(left), two(right)  # 1 / (4 + 2), 1 / (1 + 1 / 2)
    ([0.17, 0.17], [0.67, 0.67, 0.67])
    """
    if not isinstance(found, KroneckerFactors):
        return 1 / (found + damping)
    stacked = stacked_axes(found)
    left, right = (_mean_eigenvalue(side, stacked) for side in found)
    positive = (left > 0) & (right > 0)
    pi = jnp.sqrt(jnp.where(positive, left, 1) / jnp.where(positive, right, 1))
    root = jnp.sqrt(damping)
    shifts = pi * root, root / pi
    return KroneckerFactors(
        *(_inverse(side, shift, stacked) for side, shift in zip(found, shifts, strict=True))
    )


def preconditioned(gradient: jax.Array, inverses: Any) -> jax.Array:
    """The gradient between the inverses, or times them where they are like it."""
    if not isinstance(inverses, KroneckerFactors):
        return gradient * inverses
    left, right = inverses
    stacked = stacked_axes(inverses)
    matrix = gradient.reshape(*gradient.shape[:stacked], left.shape[-1], right.shape[-1])
    if left.ndim == stacked + 1:
        matrix = left[..., :, None] * matrix
    else:
        matrix = jnp.matmul(left, matrix, precision="highest")
    if right.ndim == stacked + 1:
        matrix = matrix * right[..., None, :]
    else:
        matrix = jnp.matmul(matrix, right, precision="highest")
    return matrix.reshape(gradient.shape)


def _mean_eigenvalue(side: jax.Array, stacked: int) -> jax.Array:
    diagonal = side if side.ndim == stacked + 1 else jnp.diagonal(side, axis1=-2, axis2=-1)
    return jnp.mean(diagonal, -1)


def _inverse(side: jax.Array, shift: jax.Array, stacked: int) -> jax.Array:
    if side.ndim == stacked + 1:
        return 1 / (side + shift[..., None])
    return jnp.linalg.inv(side + shift[..., None, None] * jnp.eye(side.shape[-1], dtype=side.dtype))
