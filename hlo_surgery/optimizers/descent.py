"""Whether an optimizer goes down: tried on single elements, with a gradient and its opposite."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hlo_surgery.passes.measures.measures import MeanOf
from hlo_surgery.statistics.derived import Statistic

# Schedules often begin with a learning rate of zero, and noise is small beside the gradient of so
# many examples.
STEPS, SIZE = 2, 2**20


def climbing(optimizer: Any, statistics: Mapping[str, Statistic], params: Any) -> list[bool]:
    """Of each parameter whether the optimizer's first steps follow a larger gradient up.

    What does not depend on the gradient, such as noise and the decay of weights, is the same for
    its opposite. Empty where the optimizer cannot be tried, as it takes no such parameters or is
    not known before run time.
    """
    try:
        with jax.ensure_compile_time_eval():
            small = jax.tree.map(lambda p: jnp.ones((1,) * jnp.ndim(p), jnp.result_type(p)), params)
            up, down = (_moved(optimizer, statistics, small, sign) for sign in (1, -1))
            return [bool(jnp.real(u - d).sum() > 0) for u, d in zip(up, down, strict=True)]
    except Exception:
        return []


def _moved(
    optimizer: Any, statistics: Mapping[str, Statistic], params: Any, sign: int
) -> list[jax.Array]:
    """The sum of the first updates by a gradient of `sign` everywhere."""
    update: Any = optax.with_extra_args_support(optimizer).update
    gradient = jax.tree.map(lambda p: jnp.full_like(p, sign), params)
    given = {
        name: _of_equal_examples(statistic, gradient) for name, statistic in statistics.items()
    }
    state, total = optimizer.init(params), jax.tree.map(jnp.zeros_like, params)
    for _ in range(STEPS):
        updates, state = update(
            gradient, state, params, **given, grad=gradient, batch_size=SIZE, value=0.0
        )
        total = jax.tree.map(jnp.add, total, updates)
    return jax.tree.leaves(total)


def _of_equal_examples(statistic: Statistic, gradient: Any) -> Any:
    return jax.tree.map(statistic.phi, gradient) if isinstance(statistic, MeanOf) else gradient
