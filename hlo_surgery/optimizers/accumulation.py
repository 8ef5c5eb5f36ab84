"""Accumulation: an optimizer that steps every k microbatches, with the statistics of them all."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from hlo_surgery.optimizers.asking import asked, required_statistics
from hlo_surgery.optimizers.hyperparameters import check_microbatches, check_optimizer
from hlo_surgery.optimizers.required import batch_size, is_gradient, taken, zero_statistic
from hlo_surgery.passes.ir.element_types import widened_tree


class AccumulationState(NamedTuple):
    """How many microbatches and examples there were, their sums, and the optimizer's state."""

    microbatch: jax.Array
    examples: jax.Array
    sums: dict[str, Any]
    inner: Any


def multi_steps(optimizer: Any, every_k: int) -> optax.GradientTransformationExtraArgs:
    """The optimizer, stepping once in `every_k` updates: by the mean gradient and statistics.

    Means over the examples, as all statistics that the optimizers here take, are weighted by
    `batch_size`, which `update` needs and may be known at run time alone: microbatches of any sizes
    make the step of the whole batch. (`optax.MultiSteps` accumulates the gradient alone, and would
    hand on the statistics of the last microbatch.) Sums are kept in at least float32. Updates are
    zero in between. The loss itself is not handed on.
    Raises TypeError where `every_k` is no integer, such as a function of the step.

    >>> from hlo_surgery.optimizers import micro_sign_sgd
    >>> optimizer = multi_steps(micro_sign_sgd(1.0, b1=0.0), every_k=2)
    >>> state, signs = optimizer.init(0.0), (1.0, -0.5)
    >>> for sign in signs:
    ...     updates, state = optimizer.update(1.0, state, mean_sign=sign, batch_size=4)
    >>> float(updates)
    -0.25
    """
    check_microbatches(every_k)
    check_optimizer(optimizer)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> AccumulationState:
        # All that the optimizer sees is as wide as the sums, or its state would change its type.
        wide = widened_tree(params)
        zeros = {
            name: zero_statistic(statistic, wide)
            for name, statistic in required_statistics(optimizer, wide).items()
        }
        sums = {"gradient": jax.tree.map(jnp.zeros_like, wide), **zeros}
        return AccumulationState(
            jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), sums, inner.init(wide)
        )

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        size = jnp.asarray(batch_size(given), jnp.int32)
        means = {"gradient": updates, **taken(asked(optimizer, updates).statistics, updates, given)}
        sums = jax.tree.map(lambda s, x: s + size * x, state.sums, widened_tree(means))
        examples = state.examples + size

        def step() -> tuple[Any, Any]:
            whole = _whole(given, sums, examples, is_gradient(updates, given))
            wide = None if params is None else widened_tree(params)
            steps, following = inner.update(whole.pop("gradient"), state.inner, wide, **whole)
            none, empty = jnp.zeros_like(examples), jax.tree.map(jnp.zeros_like, sums)
            return steps, AccumulationState(none, none, empty, following)

        def wait() -> tuple[Any, Any]:
            steps, _ = jax.eval_shape(step)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), steps)
            return zeros, AccumulationState(state.microbatch + 1, examples, sums, state.inner)

        return lax.cond(state.microbatch == every_k - 1, step, wait)

    return optax.GradientTransformationExtraArgs(init, update)


def _whole(
    given: Mapping[str, Any], sums: Mapping[str, Any], examples: jax.Array, unchanged: bool
) -> dict[str, Any]:
    """The gradient and what else is given, of all microbatches; zeros of no example at all."""
    means = jax.tree.map(lambda s: s / jnp.maximum(examples, 1), dict(sums))
    # What has changed the updates has also changed their mean, which is the gradient no more.
    gradient = means["gradient"] if unchanged else jax.tree.map(jnp.zeros_like, means["gradient"])
    kept = {name: x for name, x in given.items() if name != "value"}
    return {**kept, **means, "grad": gradient, "batch_size": examples}
