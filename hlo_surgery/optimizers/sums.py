"""Momentum as `optax.trace` has it, in at least float32."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from hlo_surgery.passes.ir.constants import widened_tree


class SumState(NamedTuple):
    """The sum of the updates so far, each worth `momentum` of what it was an update ago."""

    sums: Any


def summing(momentum: float) -> optax.GradientTransformation:
    """The sum of all updates so far, each worth `momentum` of what it was an update ago."""

    def init(params: Any) -> SumState:
        return SumState(jax.tree.map(jnp.zeros_like, widened_tree(params)))

    def update(updates: Any, state: SumState, params: Any = None) -> tuple[Any, SumState]:
        sums = jax.tree.map(lambda s, g: momentum * s + g, state.sums, updates)
        return sums, SumState(sums)

    return optax.GradientTransformation(init, cast(Any, update))
