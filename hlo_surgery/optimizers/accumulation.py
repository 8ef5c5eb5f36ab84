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
from hlo_surgery.passes.ir.constants import widened_tree


class AccumulationState(NamedTuple):
    """How many microbatches and examples there were, the sums over them with how many examples each
    is of, and the optimizer's state.
    """

    microbatch: jax.Array
    examples: jax.Array
    counts: dict[str, jax.Array]
    sums: dict[str, Any]
    inner: Any


def multi_steps(optimizer: Any, every_k: int) -> optax.GradientTransformationExtraArgs:
    """The optimizer, stepping once in `every_k` updates: by the mean gradient and statistics.

    Means over the examples, as all statistics that the optimizers here take, are weighted by
    `batch_size`, which `update` needs and may be known at run time alone: microbatches of any sizes
    make the step of the whole batch. A microbatch of fewer examples than a statistic takes, as
    the noise scale takes two, is left out of it. (`optax.MultiSteps` accumulates the gradient
    alone, and would hand on the statistics of the last microbatch.) Sums are kept in at least
    float32. Updates are zero in between. The loss itself is not handed on.
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
        # Each an array of its own: states are donated.
        microbatch, examples, *counts = (jnp.zeros((), jnp.int32) for _ in range(2 + len(sums)))
        told = dict(zip(sums, counts, strict=True))
        return AccumulationState(microbatch, examples, told, sums, inner.init(wide))

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        size = jnp.asarray(batch_size(given), jnp.int32)
        statistics = asked(optimizer, updates).statistics
        means = {"gradient": updates, **taken(statistics, updates, given)}
        own = {name: _telling(size, statistics.get(name)) for name in means}
        sums = {name: _added(state.sums[name], own[name], x) for name, x in means.items()}
        counts = {name: state.counts[name] + own[name] for name in means}
        examples = state.examples + size

        def step() -> tuple[Any, Any]:
            found = {name: _mean(x, counts[name], examples) for name, x in sums.items()}
            whole = _whole(given, found, examples, is_gradient(updates, given))
            wide = None if params is None else widened_tree(params)
            steps, following = inner.update(whole.pop("gradient"), state.inner, wide, **whole)
            none, *empty = jax.tree.map(jnp.zeros_like, (examples, counts, sums))
            return steps, AccumulationState(none, none, *empty, inner=following)

        def wait() -> tuple[Any, Any]:
            steps, _ = jax.eval_shape(step)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), steps)
            following = state.microbatch + 1, examples, counts, sums
            return zeros, AccumulationState(*following, inner=state.inner)

        return lax.cond(state.microbatch == every_k - 1, step, wait)

    return optax.GradientTransformationExtraArgs(init, update)


def _telling(size: jax.Array, statistic: Any) -> jax.Array:
    """The number of examples, or none where they are fewer than the statistic is defined for."""
    return jnp.where(size >= getattr(statistic, "least", 1), size, 0)


def _added(total: Any, count: jax.Array, mean: Any) -> Any:
    """The sum, with a mean of so many examples more; of none it may be anything, NaN too."""

    def added(s: jax.Array, x: jax.Array) -> jax.Array:
        return s + jnp.where(count > 0, count * x, jnp.zeros_like(x))

    return jax.tree.map(added, total, widened_tree(mean))


def _mean(total: Any, count: jax.Array, examples: jax.Array) -> Any:
    """A count-th; zeros of no example at all, and NaN where there are some, and none has told."""
    untold = jnp.where(examples > 0, jnp.nan, 1)
    divisor = jnp.where(count > 0, count, untold)
    return jax.tree.map(lambda s: s / divisor.astype(jnp.real(s).dtype), total)


def _whole(
    given: Mapping[str, Any], means: Mapping[str, Any], examples: jax.Array, unchanged: bool
) -> dict[str, Any]:
    """The gradient and what else is given, of all microbatches."""
    # What has changed the updates has also changed their mean, which is the gradient no more.
    gradient = means["gradient"] if unchanged else jax.tree.map(jnp.zeros_like, means["gradient"])
    kept = {name: x for name, x in given.items() if name != "value"}
    return {**kept, **means, "grad": gradient, "batch_size": examples}
