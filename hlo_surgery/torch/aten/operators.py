"""Operators: the table of all of them, and what each is told beside its operands.

    aten.add.Tensor(x, y, alpha=2)    =>  TABLE["aten.add.Tensor"](made, x, y, alpha=2)

`made` says what PyTorch makes of it, so that no rule of promotion is written twice.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Operator = Callable[..., Any]
TABLE: dict[str, Operator] = {}


class Made(NamedTuple):
    """What PyTorch says that an operator makes, or of several results the first."""

    shape: tuple[int, ...]
    dtype: Any


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Enter a function of (made, *operands) in the table, under the names of aten's overloads."""

    def enter(function: Operator) -> Operator:
        for name in names:
            full = name if name.startswith("prims.") else f"aten.{name}"
            assert full not in TABLE, f"{full} is there twice"
            TABLE[full] = function
        return function

    return enter


def rows(functions: Mapping[str, Operator]) -> None:
    """Enter functions under names of overloads, which spaces part."""
    for names, function in functions.items():
        operator(*names.split())(function)


def array(x: Any, dtype: Any) -> jax.Array:
    """An operand, which may be a number, of this dtype."""
    return jnp.asarray(x).astype(dtype)


def dims_of(dims: Any, rank: int) -> tuple[int, ...]:
    """The dimensions that are meant, counted from the first: all of them by None and by []."""
    given = [dims] if isinstance(dims, int) else dims
    return tuple(dim % rank for dim in given) if given and rank else tuple(range(rank))
