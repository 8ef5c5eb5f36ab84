"""Hyperparameters: checked where an optimizer is made. Traced numbers, and what schedules return,
are not.
"""

import math
import operator
from typing import Any

from jax.core import Tracer

from hlo_surgery.statistics.derived import positive
from hlo_surgery.statistics.traced_numbers import as_float


def check_rate(name: str, rate: Any) -> None:
    """Raises ValueError for what is neither a schedule nor a finite number, at least 0."""
    if callable(rate) or isinstance(rate, Tracer):
        return
    if not 0 <= as_float(rate) < math.inf:
        raise ValueError(
            f"{name} is {rate!r}; it is a finite number, at least 0, or a schedule: a function of "
            "the number of steps so far"
        )


def check_decay(name: str, decay: Any) -> None:
    """Raises ValueError for what is no weight of the past in an average."""
    if not isinstance(decay, Tracer) and not 0 <= as_float(decay) < 1:
        raise ValueError(
            f"{name} is {decay!r}; it is how much of an average stays at each step, a number from "
            "0 to below 1"
        )


def check_bound(name: str, bound: Any) -> None:
    """Raises ValueError for what is neither None nor positive and finite."""
    if bound is not None:
        positive("the optimizer", f"{name} (or None)", bound)


def check_microbatches(every_k: Any) -> None:
    """Raises TypeError for what is no integer, ValueError for one below 1."""
    try:
        number = operator.index(every_k)
    except TypeError:
        raise TypeError(
            f"every_k is {every_k!r}; it is an integer number of microbatches, the same at every "
            "step"
        ) from None
    if number < 1:
        raise ValueError(f"every_k is {every_k}; it is a number of microbatches, at least 1")


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
