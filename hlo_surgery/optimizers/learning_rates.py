"""From a direction to a step: learning rates, their rules for the batch size, weight decay."""

import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from hlo_surgery.optimizers.hyperparameters import check_rate
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.statistics.derived import positive

LearningRate = float | jax.Array | Callable[[Any], Any]


def batch_size_rule(
    learning_rate: float, base_batch_size: int, batch_size: int, rule: str = "linear"
) -> float:
    """The learning rate for `batch_size` from the one that suits `base_batch_size`.

    "linear" (lr ~ B, for MicroAdam and what else does not depend on the batch size) or "sqrt" (lr ~
    sqrt(B), for Adam): the paper's section "Adam, MicroAdam and batch-size scalings". Raises
    ValueError for another rule, and for numbers that are not positive.

    >>> batch_size_rule(1e-3, 64, 256), batch_size_rule(1e-3, 64, 256, "sqrt")
    (0.004, 0.002)
    """
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rule is {rule!r}; it is 'linear' or 'sqrt'")
    positive("batch_size_rule", "base_batch_size", base_batch_size)
    positive("batch_size_rule", "batch_size", batch_size)
    ratio = batch_size / base_batch_size
    return learning_rate * (ratio if rule == "linear" else math.sqrt(ratio))


def stepping(learning_rate: LearningRate, weight_decay: LearningRate) -> list[Any]:
    """What makes steps of directions; without weight decay `update` needs no parameters."""
    check_rate("learning_rate", learning_rate)
    check_rate("weight_decay", weight_decay)
    decays = not isinstance(weight_decay, int | float) or weight_decay != 0
    return [
        optax.scale_by_learning_rate(learning_rate),
        *([_decaying(weight_decay)] if decays else []),
    ]


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
