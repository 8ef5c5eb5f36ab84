"""Shards: given an array and its sharded dimensions, its parts along leading dimensions; and back.

    8x3, sharded ("data",), ()  on  {"data": 4}     =>     4x2x3     =>     8x3

`lead` names the leading dimensions that the array has already.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names

Dims = tuple[Names, ...]


def sharded_axes(dims: Dims) -> frozenset[str]:
    """All mesh axes over which some dimension is sharded."""
    return frozenset(name for axes in dims for name in axes)


def split(x: jax.Array, lead: Names, dims: Dims, mesh: Mesh) -> jax.Array:
    """The parts of the whole, along further leading dimensions."""
    local = [
        n // math.prod(mesh[name] for name in axes)
        for n, axes in zip(x.shape[len(lead) :], dims, strict=True)
    ]
    has = [*lead, *_in_turn(dims)]
    parts = x.reshape([mesh[each] if isinstance(each, str) else local[each] for each in has])
    wanted = [*(name for name in mesh if name in has), *range(len(dims))]
    return lax.transpose(parts, [has.index(each) for each in wanted])


def put_together(x: jax.Array, lead: Names, kept: Names, dims: Dims, mesh: Mesh) -> jax.Array:
    """The whole of the parts. Devices along axes neither kept nor sharded over should agree: it is
    the first one's.
    """
    wanted = sharded_axes(dims).union(kept)
    x = x[tuple(slice(None) if name in wanted else 0 for name in lead)]
    new = [name for name in mesh if name in wanted and name not in lead]
    x = jnp.broadcast_to(x, (*(mesh[name] for name in new), *x.shape))
    has = [*new, *(name for name in lead if name in wanted), *range(len(dims))]
    local = x.shape[len(wanted) :]
    whole = [n * math.prod(mesh[m] for m in axes) for n, axes in zip(local, dims, strict=True)]
    order = [*kept, *_in_turn(dims)]
    parts = lax.transpose(x, [has.index(each) for each in order])
    return parts.reshape([*(mesh[name] for name in kept), *whole])


def _in_turn(dims: Dims) -> list[str | int]:
    """Each dimension by its number, behind the axes over which it is sharded."""
    return [each for d, axes in enumerate(dims) for each in (*axes, d)]


def agreed(x: jax.Array) -> jax.Array:
    """The array, in a way that no sum over examples passes: that devices agree is not proved."""
    return x if jnp.iscomplexobj(x) else lax.max(x, x)
