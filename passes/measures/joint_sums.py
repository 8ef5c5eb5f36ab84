"""Joint sums: several arrays summed by one reduction, for which XLA reads their elements once."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def joint_sums(arrays: Sequence[jax.Array], dims: Sequence[int]) -> Sequence[jax.Array]:
    """The sums over these dimensions of arrays of one shape, each in its own dtype."""
    zeros = tuple(jnp.zeros((), x.dtype) for x in arrays)
    return lax.reduce(tuple(arrays), zeros, _added, dims)


def summed_together(arrays: Any, dim: int) -> Any:
    """A tree of arrays, each summed over a dimension: those of one shape by one reduction.

    >>> summed_together({"x": jnp.ones((3, 2)), "y": jnp.zeros((3, 2))}, 0)["x"].tolist()
    [3.0, 3.0]
    """
    leaves, tree = jax.tree.flatten(arrays)
    made: dict[int, jax.Array] = {}
    for shape in dict.fromkeys(x.shape for x in leaves):
        alike = [i for i, x in enumerate(leaves) if x.shape == shape]
        made |= zip(alike, joint_sums([leaves[i] for i in alike], [dim]), strict=True)
    return jax.tree.unflatten(tree, [made[i] for i in range(len(leaves))])


def _added(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(map(lax.add, one, other))
