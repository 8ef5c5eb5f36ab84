"""Collectives: given an op that exchanges values, the same on an array of all devices' values.

    psum over "data" of x : 4 devices, each 2x3      =>    sum of x : 4x2x3 over dimension 0

Every device's value lies at its place along leading dimensions, one for each mesh axis. `lead`
names them in order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer
from hlo_surgery.passes.ir.element_types import has_numbers
from hlo_surgery.passes.ir.mlir import Operation, ir
from hlo_surgery.passes.ir.placement import is_annotation, placed
from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names, group_axes
from hlo_surgery.passes.normalise.devices.permutations import sources_along

Exchange = Callable[..., jax.Array]  # of an array, and `lead`


@dataclass(frozen=True)
class Collective:
    """Over which axes values are exchanged, whether devices get different ones, and how."""

    axes: Names
    differ: bool
    exchange: Exchange


REDUCTIONS: dict[str, Callable[[jax.Array, tuple[int, ...]], jax.Array]] = {
    "stablehlo.add": lax.reduce_sum,
    "stablehlo.multiply": lax.reduce_prod,
    "stablehlo.maximum": lax.reduce_max,
    "stablehlo.minimum": lax.reduce_min,
    "stablehlo.and": lax.reduce_and,
    "stablehlo.or": lax.reduce_or,
    "stablehlo.xor": lax.reduce_xor,
}


def collective_of(op: Operation, mesh: Mesh) -> Collective | None:
    """The collective on arrays; None if its groups are no mesh axes, or no rule covers it."""
    if op.name == "stablehlo.collective_permute":
        return _permute(op, mesh)
    axes = group_axes(op, mesh) if op.name in RULES else None
    rule = RULES[op.name](op, axes, mesh) if axes is not None else None
    return None if axes is None or rule is None else Collective(axes, op.name in DIFFER, rule)


def _all_reduce(op: Operation, axes: Names, _: Mesh) -> Exchange | None:
    reduction = _reduction(op)

    def reduced(x: jax.Array, lead: Names) -> jax.Array:
        assert reduction is not None
        return reduction(x, _places(axes, lead))

    return reduction and reduced


def _all_gather(op: Operation, axes: Names, _: Mesh) -> Exchange:
    dim = integer(op, "all_gather_dim")

    def gathered(x: jax.Array, lead: Names) -> jax.Array:
        at = len(lead) - len(axes) + dim
        return _merged(
            jnp.moveaxis(x, _places(axes, lead), range(at, at + len(axes))), at, len(axes)
        )

    return gathered


def _reduce_scatter(op: Operation, axes: Names, mesh: Mesh) -> Exchange | None:
    dim, reduction = integer(op, "scatter_dimension"), _reduction(op)
    sizes = [mesh[name] for name in axes]

    def scattered(x: jax.Array, lead: Names) -> jax.Array:
        assert reduction is not None
        at = len(lead) - len(axes) + dim
        parts = _parted(reduction(x, _places(axes, lead)), at, sizes)
        return jnp.moveaxis(parts, range(at, at + len(axes)), _places(axes, lead))

    return reduction and scattered


def _all_to_all(op: Operation, axes: Names, mesh: Mesh) -> Exchange:
    split, concat = integer(op, "split_dimension"), integer(op, "concat_dimension")
    sizes, count = [mesh[name] for name in axes], len(axes)

    def exchanged(x: jax.Array, lead: Names) -> jax.Array:
        parts = _parted(x, len(lead) + split, sizes)
        senders = jnp.moveaxis(parts, _places(axes, lead), range(-count, 0))
        at = len(lead) - count + split
        received = jnp.moveaxis(senders, range(at, at + count), _places(axes, lead))
        at = len(lead) + concat
        return _merged(jnp.moveaxis(received, range(-count, 0), range(at, at + count)), at, count)

    return exchanged


RULES: dict[str, Callable[[Operation, Names, Mesh], Exchange | None]] = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
}
DIFFER = frozenset(["stablehlo.reduce_scatter", "stablehlo.all_to_all"])


def _permute(op: Operation, mesh: Mesh) -> Collective | None:
    """Along the fewest axes that tell pairs apart: what each device receives, zeros if nothing."""
    if "channel_handle" not in op.attributes:
        return None
    pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"]))
    axes, sources = sources_along(pairs, mesh)

    def permuted(x: jax.Array, lead: Names) -> jax.Array:
        ahead = jnp.moveaxis(x, _places(axes, lead), range(len(axes)))
        flat = ahead.reshape(len(sources), *ahead.shape[len(axes) :])
        rows = [flat[s : s + 1] if s >= 0 else jnp.zeros_like(flat[:1]) for s in sources]
        moved = lax.concatenate(rows, 0).reshape(ahead.shape)
        return jnp.moveaxis(moved, range(len(axes)), _places(axes, lead))

    return Collective(axes, True, permuted)


def _reduction(op: Operation) -> Callable[[jax.Array, tuple[int, ...]], jax.Array] | None:
    """By the one op that combines two devices' values, whose result the body returns."""
    block = op.regions[0].blocks[0]
    *combining, end = [inner for inner in mlir.operations(block) if not is_annotation(inner)]
    made = [v for inner in combining for v in inner.results]
    if list(map(placed, end.operands)) != made or set(combining[0].operands) != set(
        block.arguments
    ):
        return None
    if combining[0].name in ("stablehlo.add", "stablehlo.multiply") and not has_numbers(op):
        return None
    return REDUCTIONS.get(combining[0].name)


def _places(axes: Names, lead: Names) -> tuple[int, ...]:
    return tuple(lead.index(name) for name in axes)


def _parted(x: jax.Array, dim: int, sizes: list[int]) -> jax.Array:
    """One dimension as one for each size and what is left."""
    return x.reshape(*x.shape[:dim], *sizes, -1, *x.shape[dim + 1 :])


def _merged(x: jax.Array, dim: int, count: int) -> jax.Array:
    """The dimension behind `count` others merged with them."""
    merged = int(np.prod(x.shape[dim : dim + count + 1]))
    return x.reshape(*x.shape[:dim], merged, *x.shape[dim + count + 1 :])
