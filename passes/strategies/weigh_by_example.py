"""Weigh by example: weighted sums of gradients, and inner products, from each example's own.

It is the way where operands cannot take the weights: what is rounded, and what `vmap` cannot lift.
"""

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.strategies.loop_examples import looped_gradients
from hlo_surgery.passes.strategies.strategy import Chosen
from hlo_surgery.passes.strategies.task import Known


def weighted_by_example(
    chosen: Chosen, known: Known, weights: jax.Array, finite: jax.Array | None
) -> jax.Array:
    """The sum over b of w_b g_b of a mean loss, in at least float32; of the `finite` alone."""
    size = weights.shape[0]

    def scaled(gradient: jax.Array, weight: jax.Array, keep: jax.Array) -> jax.Array:
        wide = widened(gradient)
        return jnp.where(keep, wide * weight.astype(wide.dtype), jnp.zeros_like(wide))

    keep = jnp.ones(size, bool) if finite is None else finite
    function, schedule = chosen.task.function, chosen.schedule
    total, _ = looped_gradients(function, known, size, schedule, scaled, _nothing, (weights, keep))
    return total


def along_by_example(chosen: Chosen, known: Known, direction: jax.Array) -> jax.Array:
    """Inner products of each example's own gradient with a direction, [B], at least float32; with
    m directions [m, *parameter], [B, m].
    """
    against = widened(direction).conj()

    def product(gradient: jax.Array) -> jax.Array:
        own = widened(gradient)
        return jnp.real(jnp.tensordot(against, own, own.ndim, precision="highest"))

    function, size = chosen.task.function, chosen.task.examples.size
    _, rows = looped_gradients(function, known, size, chosen.schedule, _nothing, product)
    return rows


def _nothing(gradient: jax.Array) -> tuple[()]:
    return ()
