"""Microbatches: the mean loss of a batch, a part of it after the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def by_microbatch(loss: Callable[[Any, Array], Array], count: int) -> Callable[[Any, Array], Array]:
    """The loss of a whole batch, whose gradient is added up over so many microbatches.

    Each is computed again in the backward pass, so that only one is in memory. Every k-th example
    is in the same microbatch: so each device goes on with its own examples.
    """

    def whole(params: Any, tokens: Array) -> Array:
        parts = jnp.swapaxes(tokens.reshape(-1, count, tokens.shape[-1]), 0, 1)
        of_part = jax.checkpoint(loss, prevent_cse=False)

        def add(total: Array, part: Array) -> tuple[Array, None]:
            return total + of_part(params, part), None

        return lax.scan(add, jnp.zeros(()), parts)[0] / count

    return whole if count > 1 else loss
