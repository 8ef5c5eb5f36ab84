"""A train step: gradient, the statistics that the optimizer needs, and the update, compiled together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import jax

from hlo_surgery.derived import Statistic
from hlo_surgery.planning_options import PlanningOptions


def train_step(
    loss: Callable[..., Any],
    optimizer: Any,
    batch_argnums: int | Sequence[int] = 1,
    *,
    in_axes: Any = 0,
    has_aux: bool = False,
    statistics: Mapping[str, Statistic] | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    **planning: Unpack[PlanningOptions],
) -> Any:
    """A jitted `step(params, opt_state, *rest)`, for `loss(params, *rest)`, that returns (params, opt_state, metrics).

    `optimizer` is any of optax or of `hlo_surgery.optimizers`, or a composition, and opt_state begins as
    `optimizer.init(params)`. Both params and opt_state are donated: use those that are returned. The optimizer gets
    the mean of the examples' gradients, also where the loss is their sum, and the statistics that it needs. `metrics`
    has "loss", the value that the step began with, each of `statistics` by its name, and "aux" with `has_aux`.
    The other keywords are as in `value_and_grad`. Raises Refusal and ValueError when first called; needs optax.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> from hlo_surgery.optimizers import micro_adam
    >>> loss = lambda w, x: jnp.mean((x @ w - 1) ** 2)
    >>> optimizer, params = micro_adam(0.5), jnp.zeros(3)
    >>> step = hs.train_step(loss, optimizer, statistics={"norms": hs.norms()})
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     params, state, metrics = step(params, state, jnp.eye(4, 3))
    >>> float(metrics["loss"]), metrics["norms"].shape
    (0.671875, (4,))
    """
    # What needs optax is imported where it is used; the rest of the package does without.
    from hlo_surgery.optimizers.training import Training

    options: Any = {"in_axes": in_axes, "loss_reduction": loss_reduction, "on_mixing": on_mixing, **planning}
    training = Training(loss, optimizer, batch_argnums, has_aux, statistics or {}, options)
    return jax.jit(training.step, donate_argnums=(0, 1))
