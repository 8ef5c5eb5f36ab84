"""Tiles: what a kernel takes of the products of each example, a tile [Dt, Ft] at a time.

for a tile of [D, F], and in it for each example b:
    M_b = a[b, :, tile]' d[b, :, tile]          float32, never in main memory
    sums += take(M_b).sums ; rows[b, tile] = take(M_b).rows
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

WORD = jnp.float32


@dataclass(frozen=True)
class Parts:
    """What is taken of a tile of one example's products: tiles to be summed over the examples, and
    numbers of the example's own, [1, 1] each.
    """

    sums: Sequence[jax.Array]
    rows: Sequence[jax.Array] = ()


# Of a tile [Dt, Ft] in float32, and of the example's own numbers.
Take = Callable[[jax.Array, Sequence[jax.Array]], Parts]


@dataclass(frozen=True)
class Products:
    """Operands of a site, a[B, P, D] and d[B, P, F], numbers of each example, [B, k] in float32,
    and what is taken of each example's products.
    """

    a: jax.Array
    d: jax.Array
    numbers: jax.Array
    take: Take
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT

    @property
    def size(self) -> int:
        """B."""
        return self.a.shape[0]

    @property
    def lengths(self) -> tuple[int, int, int]:
        """P, D and F."""
        return self.a.shape[1], self.a.shape[2], self.d.shape[2]

    def counts(self) -> tuple[int, int]:
        """How many tiles are summed, and how many numbers kept."""
        numbers = [jax.ShapeDtypeStruct((), WORD)] * self.numbers.shape[1]
        tile = jax.ShapeDtypeStruct((8, 128), WORD)

        def taken(tile: jax.Array, *numbers: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            parts = self.take(tile, numbers)
            return list(parts.sums), list(parts.rows)

        sums, rows = jax.eval_shape(taken, tile, *numbers)
        return len(sums), len(rows)


def padded(x: jax.Array, multiples: tuple[int, int]) -> jax.Array:
    """[B, positions, elements] with zeros behind, so that tiles of these sizes cover it.

    Zeros add nothing to products, so that of padded elements all products are zero.
    """
    behind = [-size % tile for size, tile in zip(x.shape[1:], multiples, strict=True)]
    return jnp.pad(x, [(0, 0), *((0, more) for more in behind)]) if any(behind) else x


def norm_of(tile: jax.Array) -> jax.Array:
    """The norm of a tile, [1, 1]: its squares are taken of elements over the largest, and neither
    overflow nor underflow where they count. Made of what kernels can do.
    """
    largest = jnp.max(jnp.abs(tile), keepdims=True)
    # The inverse of the largest floats would be flushed to zero.
    near = jnp.where(largest > 1, largest * 0.25, largest)
    usable = (near > 0) & (near < jnp.inf)
    unit = jnp.where(usable, near, jnp.ones_like(near))
    return jnp.sqrt(jnp.sum(jnp.square(tile * (1 / unit)), keepdims=True)) * unit
