"""A train step: gradient, the optimizer's statistics and the update, compiled together."""

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from hlo_surgery.api import value_of
from hlo_surgery.requests.in_axes import batch_keys
from hlo_surgery.requests.options import PlanningOptions
from hlo_surgery.requests.request import LossReduction, OnMixing
from hlo_surgery.rewriting.asked_function import AskedFunction
from hlo_surgery.rewriting.pipeline import check_planning
from hlo_surgery.statistics.derived import Statistics, named

if TYPE_CHECKING:
    from hlo_surgery.optimizers.steps import TrainStep


def train_step(
    loss: Callable[..., Any],
    optimizer: Any,
    batch_argnums: int | Sequence[int] | None = None,
    *,
    batch_argnames: str | Sequence[str] | None = None,
    in_axes: Any = 0,
    has_aux: bool = False,
    statistics: Statistics | None = None,
    loss_reduction: LossReduction = "mean",
    on_mixing: OnMixing = "refuse",
    is_real: Any = None,
    rows_per_example: int = 1,
    segments: Any = None,
    **planning: Unpack[PlanningOptions],
) -> "TrainStep":
    """A jitted `step(params, opt_state, *rest)`, for `loss(params, *rest)`, that returns (params,
    opt_state, metrics).

    `params` may be a model: leaves that are no floats, such as functions and integers, stay as they
    are, and opt_state begins as `optimizer.init` of the floats, with None for the others. A model
    of flax.nnx is itself updated, and opt_state begins as
    `optimizer.init(nnx.state(model, nnx.Param))`.
    `rest`, by position or name, is traced, as by `jax.jit`: close over flags. `optimizer` is one of
    optax or of `hlo_surgery.optimizers`, or a composition, of those that take the gradient and the
    parameters alone (not `optax.lbfgs`, which takes the loss too), or one of the aggregators of
    `optax.experimental.aggregating`, whose mean and variance are then statistics; opt_state begins
    as `optimizer.init(...)`.
    Both params and opt_state are donated: use those that are returned. The optimizer gets the mean
    of the examples' gradients, also where the loss is their sum, and the statistics that it needs.
    `metrics` has "loss", the value that the step began with, each of `statistics` (one, or a dict)
    by its name, and "aux" with `has_aux`. With `is_real`, the optimizer's batch size is the number
    of the real examples, counted at every step; a step without any has zeros for statistics; and a
    private optimizer with noise must have an `expected_batch_size`, as that number is data. The
    other keywords are as in `value_and_grad`, and `step.lower` as in `jax.jit`. Raises Refusal and
    ValueError when first called; needs optax.

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
    from hlo_surgery.optimizers.steps import TrainStep

    check_planning(train_step, planning)
    own = named(statistics) if statistics else {}
    batch = batch_keys(batch_argnums, batch_argnames)
    how = (loss_reduction, on_mixing, is_real, rows_per_example, segments, planning)
    asked = (loss, operator.itemgetter(1), batch, in_axes, own, *how, value_of(has_aux))
    return TrainStep(AskedFunction(*asked), optimizer, has_aux, own)
