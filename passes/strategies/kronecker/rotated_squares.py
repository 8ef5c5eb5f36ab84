"""Rotated squares: the mean of |P' g_b Q|**2 over the examples, P and Q of orthonormal columns.

g_b = l_b r_b'     =>     (P' l_b)**2 (Q' r_b)**2', one contraction of squares
g_b of several positions, or P and Q not over the axes of l and r: each example's gradient in turn
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.measures.kronecker import KroneckerFactors, rotated_square, stacked_axes
from hlo_surgery.passes.strategies.by_gradient.by_example import sum_over_examples
from hlo_surgery.passes.strategies.kronecker.kronecker import operands_of
from hlo_surgery.passes.strategies.kronecker.sides import common_sides, sizes_of
from hlo_surgery.passes.strategies.strategy import Chosen
from hlo_surgery.passes.strategies.task import Known, Task


def rotated_squares(chosen: Chosen, known: Known, basis: KroneckerFactors) -> jax.Array:
    """Like the gradient, in at least float32."""
    task = chosen.task
    if task.examples.size > 1 and len(task.paths) == 1 and _is_parted_alike(task, basis):
        left, right = operands_of(task, known)[0]
        if left.ndim == right.ndim == 4 and left.shape[2] == 1:
            return _of_products(task, known, (left[:, :, 0], right[:, :, 0]), basis)
    return _of_each(chosen, known, basis)


def _is_parted_alike(task: Task, basis: KroneckerFactors) -> bool:
    """Whether the basis parts the gradient's axes where its site does: elsewhere the two factors of
    an example's gradient are none of the rotated one.
    """
    sides = common_sides(task.paths)
    if sides is None:
        return False
    stacked, left, right = sizes_of(sides[0], mlir.shape(task.sliced.value))
    own = [side.shape[1:2] for side in _flat(basis)]
    layers = math.prod(basis.left.shape[: stacked_axes(basis)])
    return layers == math.prod(stacked) and own == [(left,), (right,)]


def _of_products(
    task: Task, known: Known, operands: Sequence[jax.Array], basis: KroneckerFactors
) -> jax.Array:
    """From operands [B, stacked, elements], whose products the gradients are."""
    squares = [jnp.square(_along(x, side)) for x, side in zip(operands, _flat(basis), strict=True)]
    total = jnp.einsum("bgi,bgj->gij", *squares, precision="highest")
    return total.reshape(mlir.shape(task.sliced.value)) / task.examples.count(known)


def _flat(basis: KroneckerFactors) -> list[jax.Array]:
    """Both sides with what is stacked in one dimension: [stacked, D, D], or [stacked, D]."""
    stacked = stacked_axes(basis)
    return [side.reshape(-1, *side.shape[stacked:]) for side in basis]


def _along(x: jax.Array, side: jax.Array) -> jax.Array:
    """Along the columns of a side; of a diagonal as it is."""
    return x if side.ndim == 2 else jnp.einsum("bgd,gdi->bgi", x, side, precision="highest")


def _of_each(chosen: Chosen, known: Known, basis: KroneckerFactors) -> jax.Array:
    """From each example's own gradient."""
    total = sum_over_examples([chosen], known, lambda own: rotated_square(own[0], basis))
    return total / chosen.task.examples.count(known)
