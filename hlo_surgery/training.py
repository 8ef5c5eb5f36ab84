"""A train step: gradient, the optimizer's statistics and the update, compiled together."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.core import Tracer

from hlo_surgery.frameworks.models import (
    as_pytrees,
    split_traced,
    with_fixed,
    with_fixed_numbers,
    without_fixed_numbers,
)
from hlo_surgery.frameworks.nnx_models import is_model, update_models
from hlo_surgery.public_function import public
from hlo_surgery.requests.in_axes import batch_keys, refuse_segments
from hlo_surgery.requests.options import PlanningChoices, PlanningOptions
from hlo_surgery.requests.request import LossReduction, OnMixing
from hlo_surgery.rewriting.pipeline import check_planning
from hlo_surgery.rewritten_function import Statistics
from hlo_surgery.statistics.derived import named
from hlo_surgery.users_functions import named_mesh, running_here


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
    from hlo_surgery.optimizers.steps import Training

    check_planning(train_step, planning)
    refuse_segments(segments)
    PlanningChoices(**planning)
    asked_how: Any = {"in_axes": in_axes, "loss_reduction": loss_reduction, "on_mixing": on_mixing}
    rows: Any = {"rows_per_example": rows_per_example, "segments": segments}
    options: Any = {**asked_how, "is_real": is_real, **rows, **planning}
    asked = named(statistics) if statistics else {}
    batch = batch_keys(batch_argnums, batch_argnames)
    return TrainStep(Training(loss, optimizer, batch, has_aux, asked, options))


class TrainStep:
    """A jitted train step. It sees over how many devices the examples of a call lie, which tracing
    would hide.
    """

    def __init__(self, training: Any) -> None:
        self._training = training
        self._jitted = jax.jit(training.traced, static_argnums=(0, 1), donate_argnums=(2, 3))

    def __repr__(self) -> str:
        return f"<train step of {getattr(self._training.loss, '__name__', 'a loss')}>"

    @public
    def __call__(
        self, params: Any, opt_state: Any, *rest: Any, **named: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The parameters and the optimizer's state after the step, and the metrics."""
        given = (params, rest, named)
        pytrees = as_pytrees(given)
        shards = self._training.shards(pytrees)
        arrays, fixed = split_traced(pytrees[0])
        own = _apart((arrays, opt_state))
        others = pytrees[1:]
        _check_not_donated((own, others))
        with running_here(self._training.options.get("target")):
            own = self._committed((shards, fixed), own, others)
            found = self._jitted(shards, fixed, *own, *others)
        arrays, opt_state, values, metrics = found
        update_models(given, pytrees, values)
        fixed = split_traced(with_fixed_numbers(params), is_model)[1]
        return without_fixed_numbers(with_fixed(arrays, fixed)), opt_state, metrics

    def _committed(self, static: tuple[Any, Any], own: tuple[Any, Any], others: Any) -> Any:
        """Parameters and state committed to their device, as a step returns them: else it would be
        compiled twice. Where the loss names a mesh they belong on its devices, and `jax.jit` puts
        them there.
        """
        if any(_is_committed(leaf) for leaf in jax.tree.leaves((own, others))):
            return own
        traced: Any = self._jitted.trace(*static, *own, *others)
        if named_mesh(traced.jaxpr.jaxpr) is not None:
            return own
        return jax.device_put(own, jnp.zeros(()).sharding)

    @public
    def lower(self, params: Any, opt_state: Any, *rest: Any, **named: Any) -> Any:
        """The step lowered for such arguments, or for `jax.ShapeDtypeStruct`s, ahead of time."""
        pytrees = as_pytrees((params, rest, named))
        arrays, fixed = split_traced(pytrees[0])
        return self._jitted.lower(
            self._training.shards(pytrees), fixed, arrays, opt_state, *pytrees[1:]
        )


def _apart(donated: Any) -> Any:
    """With copies of arrays that occur again, as parameters do in some states: no buffer is donated
    twice.
    """
    seen: set[int] = set()

    def apart(leaf: Any) -> Any:
        is_seen = isinstance(leaf, jax.Array) and id(leaf) in seen
        seen.add(id(leaf))
        return jnp.copy(leaf) if is_seen else leaf

    return jax.tree.map(apart, donated)


def _check_not_donated(arrays: Any) -> None:
    """Raises ValueError where a step before has used them up: on several devices the runtime ends
    the process over them.
    """
    held = [x for x in jax.tree.leaves(arrays) if isinstance(x, jax.Array)]
    if any(not isinstance(x, Tracer) and x.is_deleted() for x in held):
        raise ValueError(
            "an array of the step has been deleted: params and opt_state are donated; go on with "
            "those that the step returned, or give it copies, jax.tree.map(jnp.copy, params)"
        )


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, Tracer) or (isinstance(leaf, jax.Array) and leaf.committed)
