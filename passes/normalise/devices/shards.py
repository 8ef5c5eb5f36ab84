"""Shards: given an array and its sharded dimensions, its parts along leading dimensions; and back.

    8x3, sharded ("data",), ()  on  {"data": 4}     =>     4x2x3     =>     8x3

`lead` names the leading dimensions that the array has already.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names, in_order


def sharded_axes(dims: tuple[Names, ...]) -> frozenset[str]:
    """All mesh axes over which some dimension is sharded."""
    return frozenset(name for axes in dims for name in axes)


def fuse(
    groups: list[Names], mesh: Mesh, uses: Sequence[Names]
) -> tuple[Mesh, Callable[[Names], Names]]:
    """A mesh with groups of axes as one each, where every use is whole, in order; and the renaming.

    So a batch sharded over two axes has its examples along two dimensions, and not three.
    """
    whole = [
        group
        for group in groups
        if len(group) > 1 and all(_holds_whole(names, group) for names in uses)
    ]
    sizes = [
        {",".join(g): math.prod(mesh[n] for n in g)} if g in whole else {n: mesh[n] for n in g}
        for g in groups
    ]

    def renamed(names: Names) -> Names:
        for group in whole:
            if group[0] in names:
                at = names.index(group[0])
                names = (*names[:at], ",".join(group), *names[at + len(group) :])
        return names

    return {name: size for axes in sizes for name, size in axes.items()}, renamed


def _holds_whole(names: Names, group: Names) -> bool:
    at = names.index(group[0]) if group[0] in names else 0
    return names[at : at + len(group)] == group or not frozenset(names) & frozenset(group)


def split(x: jax.Array, lead: Names, dims: tuple[Names, ...], mesh: Mesh) -> jax.Array:
    """The parts of the whole, along further leading dimensions."""
    shape = [mesh[name] for name in lead]
    labels: list[str | int] = list(lead)
    for d, axes in enumerate(dims):
        counts = [mesh[name] for name in axes]
        shape += [*counts, x.shape[len(lead) + d] // math.prod(counts)]
        labels += [*axes, d]
    wanted = [*in_order(frozenset(lead) | sharded_axes(dims), mesh), *range(len(dims))]
    return lax.transpose(x.reshape(shape), [labels.index(label) for label in wanted])


def put_together(
    x: jax.Array, lead: Names, kept: Names, dims: tuple[Names, ...], mesh: Mesh
) -> jax.Array:
    """The whole of the parts. Devices along axes neither kept nor sharded over should agree: it is
    the first one's.
    """
    for name in reversed(
        [name for name in lead if name not in kept and name not in sharded_axes(dims)]
    ):
        x = lax.index_in_dim(x, 0, lead.index(name), keepdims=False)
    has = tuple(name for name in lead if name in kept or name in sharded_axes(dims))
    labels: list[str | int] = [
        *in_order(frozenset(has) | sharded_axes(dims), mesh),
        *range(len(dims)),
    ]
    places = [labels.index(label) for label in (*has, *range(len(dims)))]
    local = x.shape[len(has) :]
    x = lax.broadcast_in_dim(
        x, [local[label] if isinstance(label, int) else mesh[label] for label in labels], places
    )
    order = [*kept, *(label for d, axes in enumerate(dims) for label in (*axes, d))]
    whole = [
        size * math.prod(mesh[name] for name in axes)
        for size, axes in zip(local, dims, strict=True)
    ]
    return lax.transpose(x, [labels.index(label) for label in order]).reshape(
        *(mesh[name] for name in kept), *whole
    )


def agreed(x: jax.Array) -> jax.Array:
    """The array, in a way that no sum over examples passes: that devices agree is not proved."""
    return x if jnp.iscomplexobj(x) else lax.max(x, x)
