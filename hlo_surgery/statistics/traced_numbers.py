"""Numbers that statistics take: known ones are checked when given, traced ones vary with each call.

A traced number that is not what it should be makes NaN of the statistic, since there is nobody to
raise an error for.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

Number = float | jax.Array


def known(statistic: str, name: str, value: Any) -> Any:
    """The value, if it is not traced; else TypeError."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{statistic} takes a {name} that is known when it is traced; mark it static for "
            "jax.jit"
        )
    return value


def as_float(value: Any) -> float:
    """A known number, or NaN for what is no real number, as text is none."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def traced_number(statistic: str, name: str, value: Any) -> jax.Array:
    """A traced value, if it is one real number; else ValueError."""
    kind: Any = jax.typeof(value)
    if kind.shape or not jnp.issubdtype(kind.dtype, jnp.number) or jnp.iscomplexobj(value):
        raise ValueError(f"{statistic} takes one real number for {name}, not {kind.str_short()}")
    return value


def number(statistic: str, name: str, value: Any) -> Number:
    """A real number, traced or finite; else ValueError."""
    if isinstance(value, Tracer):
        return traced_number(statistic, name, value)
    if not math.isfinite(as_float(value)):
        raise ValueError(f"{statistic} takes one real, finite number for {name}, not {value!r}")
    return as_float(value)


def flag(statistic: str, name: str, value: Any) -> bool:
    """True or False; else TypeError, as text such as "False" counts as true elsewhere."""
    if not isinstance(value, bool):
        raise TypeError(f"{statistic} takes True or False for {name}, not {value!r}")
    return value


def entries_of(values: Any) -> list[Any]:
    """What a sequence or an array holds; nothing where it is none."""
    try:
        return list(values)
    except TypeError:
        return []


def positive_in(dtype: Any, value: Number) -> Number:
    """A number in a dtype; a traced one is NaN where it is not positive and finite there."""
    if not isinstance(value, Tracer):
        return value
    rounded = jnp.asarray(value, dtype)
    return jnp.where((rounded > 0) & jnp.isfinite(rounded), rounded, jnp.nan)


def like(value: Number, array: jax.Array) -> Number:
    """A number that leaves the dtype of the array as it is."""
    return value.astype(array.dtype) if isinstance(value, Tracer) else value


def shown(value: Any) -> str:
    """A number in the name of a statistic."""
    return "traced" if isinstance(value, Tracer) else str(value)
