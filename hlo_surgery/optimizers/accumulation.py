"""Accumulation: an optimizer that takes a step every k microbatches, with the statistics of all their examples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from hlo_surgery.optimizers.required import required_statistics, taken, zero_statistic
from hlo_surgery.passes.element_types import widened_tree


class AccumulationState(NamedTuple):
    """How many microbatches have been added up, the sums of gradient and statistics, and the optimizer's own state."""

    microbatch: jax.Array
    sums: dict[str, Any]
    inner: Any


def multi_steps(optimizer: Any, every_k: int) -> optax.GradientTransformationExtraArgs:
    """The optimizer, which steps once in `every_k` updates: by the mean gradient and the mean statistics of them all.

    Statistics that are means over the examples, as all that the optimizers here take, average to those of the whole
    batch, if every microbatch has as many examples. (`optax.MultiSteps` accumulates the gradient alone, and would hand
    on the statistics of the last microbatch.) Sums are kept in at least float32. Updates are zero in between. The loss
    itself is not handed on.
    """
    if every_k < 1:
        raise ValueError(f"every_k is {every_k}; it is a number of microbatches, at least 1")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> AccumulationState:
        # All that the optimizer sees is as wide as the sums, or its state would change its type.
        wide = widened_tree(params)
        zeros = {
            name: zero_statistic(statistic, wide) for name, statistic in required_statistics(optimizer, wide).items()
        }
        sums = {"gradient": jax.tree.map(jnp.zeros_like, wide), **zeros}
        return AccumulationState(jnp.zeros((), jnp.int32), sums, inner.init(wide))

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        added = {"gradient": updates, **taken(required_statistics(optimizer, updates), updates, given)}
        sums = jax.tree.map(jnp.add, state.sums, widened_tree(added))

        def step() -> tuple[Any, Any]:
            means = jax.tree.map(lambda s: s / every_k, sums)
            gradient = means.pop("gradient")
            sizes = {"batch_size": every_k * given["batch_size"]} if "batch_size" in given else {}
            whole = {**{name: x for name, x in given.items() if name != "value"}, **means, **sizes}
            wide = None if params is None else widened_tree(params)
            steps, following = inner.update(gradient, state.inner, wide, **whole)
            return steps, AccumulationState(
                jnp.zeros_like(state.microbatch), jax.tree.map(jnp.zeros_like, sums), following
            )

        def wait() -> tuple[Any, Any]:
            steps, _ = jax.eval_shape(step)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), steps)
            return zeros, AccumulationState(state.microbatch + 1, sums, state.inner)

        return lax.cond(state.microbatch == every_k - 1, step, wait)

    return optax.GradientTransformationExtraArgs(init, update)
