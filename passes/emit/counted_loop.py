"""Counted loops: given a step and how often, its loop; its counter has 32 bits in any module.

`lax.scan` counts in JAX's default integers. Where those have 64 bits, the compiler for TPU makes
two words of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Carry = TypeVar("Carry")
Step = Callable[[Carry, jax.Array], tuple[Carry, Any]]


def counted_loop(
    step: Step[Carry], carry: Carry, count: int, written_out: bool = False, row: Any = None
) -> tuple[Carry, Any]:
    """What `lax.scan(step, carry, arange(count))` returns. `written_out`: step after step, without
    a loop; `row`: shapes and dtypes of what a step stacks, where they are known.

    >>> total, squares = counted_loop(lambda total, i: (total + i, i * i), jnp.int32(0), 4)
    >>> print(total, squares)
    6 [0 1 4 9]
    """
    if written_out or count == 1:
        rows: list[Any] = []
        for number in range(count):
            carry, made = step(carry, jnp.int32(number))
            rows.append(made)
        return carry, jax.tree.map(lambda *each: jnp.stack(each), *rows)
    row = jax.eval_shape(step, carry, jnp.int32(0))[1] if row is None else row
    stacks = jax.tree.map(lambda each: jnp.zeros((count, *each.shape), each.dtype), row)

    def go_on(state: tuple[jax.Array, Carry, Any]) -> tuple[jax.Array, Carry, Any]:
        number, carried, stacked = state
        carried, made = step(carried, number)
        put = partial(
            lax.dynamic_update_index_in_dim, index=number, axis=0, allow_negative_indices=False
        )
        return number + 1, carried, jax.tree.map(put, stacked, made)

    found = lax.while_loop(lambda state: state[0] < count, go_on, (jnp.int32(0), carry, stacks))
    return found[1:]
