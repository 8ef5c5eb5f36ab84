"""Tiles: what a kernel takes of the products of each example, a tile [Dt, Ft] at a time.

for a tile of [D, F], and in it for each example b:
    M_b = a[b, :, tile]' d[b, :, tile]          float32, never in main memory
    sums += take(M_b)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

WORD = jnp.float32


# Of a tile [Dt, Ft] in float32, and of the example's own numbers: tiles to be summed.
Take = Callable[[jax.Array, Sequence[jax.Array]], Sequence[jax.Array]]


@dataclass(frozen=True)
class Products:
    """Operands of a site, a[B, P, D] and d[B, P, F], numbers of each example, [B, k] in float32,
    and what is taken of each example's products: so many tiles to be summed.
    """

    a: jax.Array
    d: jax.Array
    numbers: jax.Array
    take: Take
    sums: int
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT

    @property
    def size(self) -> int:
        """B."""
        return self.a.shape[0]

    @property
    def lengths(self) -> tuple[int, int, int]:
        """P, D and F."""
        return self.a.shape[1], self.a.shape[2], self.d.shape[2]


def padded(x: jax.Array, multiples: tuple[int, int]) -> jax.Array:
    """[B, positions, elements] with zeros behind, so that tiles of these sizes cover it.

    Zeros add nothing to products, so that of padded elements all products are zero.
    """
    behind = [-size % tile for size, tile in zip(x.shape[1:], multiples, strict=True)]
    return jnp.pad(x, [(0, 0), *((0, more) for more in behind)]) if any(behind) else x
