"""Sinusoidal positions, which are no parameters."""

import jax.numpy as jnp
from jax import Array


def sinusoids(length: int, width: int) -> Array:
    """[L, D]: sines in the first half of the channels, cosines in the second."""
    rates = 10_000.0 ** -(jnp.arange(width // 2) / max(width // 2 - 1, 1))
    angles = jnp.arange(length)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def sinusoids_of_grid(side: int, width: int) -> Array:
    """[side * side, D]: half of the channels for the row, half for the column."""
    one = sinusoids(side, width // 2)
    rows, columns = jnp.repeat(one, side, 0), jnp.tile(one, (side, 1))
    return jnp.concatenate([rows, columns], -1)
