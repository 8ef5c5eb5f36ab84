"""From a direction to a step: learning rates, their rules for the batch size, weight decay.

Hyperparameters: checked where an optimizer is made. Traced numbers, and what schedules return,
are not.

State in at least float32, whatever the parameters.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.statistics.derived import as_float, positive


def check_rate(name: str, rate: Any) -> None:
    """Raises ValueError for what is neither a schedule nor a finite number, at least 0."""
    known = not callable(rate) and not isinstance(rate, Tracer)
    if known and not 0 <= as_float(rate) < math.inf:
        raise ValueError(
            f"{name} is {rate!r}; it is a finite number, at least 0, or a schedule: a function of "
            "the number of steps so far"
        )


def check_decays(**decays: Any) -> None:
    """Raises ValueError for what is no weight of the past in an average."""
    for name, decay in decays.items():
        if not isinstance(decay, Tracer) and not 0 <= as_float(decay) < 1:
            raise ValueError(
                f"{name} is {decay!r}; it is how much of an average stays at each step, a number "
                "from 0 to below 1"
            )


def check_bound(name: str, bound: Any) -> None:
    """Raises ValueError for what is neither None nor positive and finite."""
    if bound is not None:
        positive("the optimizer", f"{name} (or None)", bound)


def check_optimizer(optimizer: Any) -> None:
    """Raises TypeError for what is no gradient transformation, made."""
    if callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None)):
        return
    name = getattr(optimizer, "__name__", "")
    how = (
        f"{name} makes one: call it, as in {name}(learning_rate)"
        if callable(optimizer)
        else "pass one of optax or of hlo_surgery.optimizers, such as micro_adam(1e-3)"
    )
    raise TypeError(f"the optimizer is {optimizer!r}, which has no init and update; {how}")


LearningRate = float | jax.Array | Callable[[Any], Any]


def batch_size_rule(
    learning_rate: float,
    base_batch_size: int,
    batch_size: int,
    rule: Literal["linear", "sqrt"] = "linear",
) -> float:
    """The learning rate for `batch_size` from the one that suits `base_batch_size`.

    "linear" (lr ~ B, for MicroAdam and what else does not depend on the batch size) or "sqrt" (lr ~
    sqrt(B), for Adam): the paper's section "Adam, MicroAdam and batch-size scalings". Raises
    ValueError for another rule, and for numbers that are not positive.

    >>> batch_size_rule(1e-3, 64, 256), batch_size_rule(1e-3, 64, 256, "sqrt")
    (0.004, 0.002)
    """
    if rule not in ("linear", "sqrt"):  # pyright: ignore[reportUnnecessaryContains]
        raise ValueError(f"rule is {rule!r}; it is 'linear' or 'sqrt'")
    positive("batch_size_rule", "base_batch_size", base_batch_size)
    positive("batch_size_rule", "batch_size", batch_size)
    ratio = batch_size / base_batch_size
    return learning_rate * (ratio if rule == "linear" else math.sqrt(ratio))


def stepping(learning_rate: LearningRate, weight_decay: LearningRate) -> list[Any]:
    """What makes steps of directions; without weight decay `update` needs no parameters."""
    check_rate("learning_rate", learning_rate)
    check_rate("weight_decay", weight_decay)
    steps: list[Any] = [optax.scale_by_learning_rate(learning_rate)]
    if not isinstance(weight_decay, int | float) or weight_decay:
        steps.append(_decaying(weight_decay))
    return steps


def _decaying(weight_decay: LearningRate) -> optax.GradientTransformation:
    """In at least float32: `optax.add_decayed_weights` rounds to the parameters' type."""

    def init(params: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: Any, params: Any = None
    ) -> tuple[Any, optax.ScaleByScheduleState]:
        if params is None:
            raise ValueError("weight_decay needs the parameters: update(updates, state, params)")
        rate: Any = weight_decay(state.count) if callable(weight_decay) else weight_decay
        decayed = jax.tree.map(lambda u, p: u - rate * p, updates, widened_tree(params))
        return decayed, optax.ScaleByScheduleState(state.count + 1)

    return optax.GradientTransformation(init, cast(Any, update))


def widely(transformation: Any) -> Any:
    """The transformation, such as `optax.trace`, with its state in at least float32."""
    return transformation._replace(init=lambda params: transformation.init(widened_tree(params)))
