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
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.placement import is_annotation, placed
from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names, group_axes, sources_along

# Of what the devices of a group have, along dimension 0: what each has then, or all have.
Exchange = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Collective:
    """Over which axes values are exchanged, whether devices get different ones, and how."""

    axes: Names
    differ: bool
    exchange: Exchange

    def on_arrays(self, x: jax.Array, lead: Names) -> jax.Array:
        """What the devices get of what they have, these along leading dimensions."""
        places = [lead.index(name) for name in self.axes]
        ahead = jnp.moveaxis(x, places, range(len(places)))
        sizes, rest = ahead.shape[: len(places)], ahead.shape[len(places) :]
        function = self.exchange
        for _ in range(len(lead) - len(places)):
            function = jax.vmap(function, 1, 1 if self.differ else 0)
        made = function(ahead.reshape(-1, *rest))
        if not self.differ:
            return made
        return jnp.moveaxis(made.reshape(*sizes, *made.shape[1:]), range(len(places)), places)


REDUCTIONS: dict[str, Callable[[jax.Array, list[int]], jax.Array]] = {
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
        found = sources_along(op, mesh)
        return found and Collective(found[0], True, lambda x: _sent(x, found[1]))
    axes = group_axes(op, mesh) if op.name in RULES else None
    rule = None if axes is None else RULES[op.name](op)
    return None if axes is None or rule is None else Collective(axes, op.name in DIFFER, rule)


def _all_reduce(op: Operation) -> Exchange | None:
    reduction = _reduction(op)
    return reduction and (lambda x: reduction(x, [0]))


def _all_gather(op: Operation) -> Exchange:
    dim = integer(op, "all_gather_dim")
    return lambda x: _merged(x, dim)


def _reduce_scatter(op: Operation) -> Exchange | None:
    dim, reduction = integer(op, "scatter_dimension"), _reduction(op)
    return reduction and (lambda x: _parted(reduction(x, [0]), dim, len(x)))


def _all_to_all(op: Operation) -> Exchange:
    """What is sent to each goes in front, and who sent it behind."""
    split, concat = integer(op, "split_dimension"), integer(op, "concat_dimension")
    return lambda x: jax.vmap(lambda own: _merged(own, concat))(_parted(x, split + 1, len(x)))


RULES: dict[str, Callable[[Operation], Exchange | None]] = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
}
DIFFER = frozenset(["stablehlo.reduce_scatter", "stablehlo.all_to_all"])


def _sent(x: jax.Array, sources: list[int]) -> jax.Array:
    """What each device receives, zeros if nothing."""
    return lax.concatenate([x[s : s + 1] if s >= 0 else jnp.zeros_like(x[:1]) for s in sources], 0)


def _reduction(op: Operation) -> Callable[[jax.Array, list[int]], jax.Array] | None:
    """By the one op that combines two devices' values, whose result the body returns."""
    block = op.regions[0].blocks[0]
    ops = [inner for inner in mlir.operations(block) if not is_annotation(inner)]
    combining, end = ops[0], ops[-1]
    both = len(ops) == 2 and set(combining.operands) == set(block.arguments)
    if not both or list(map(placed, end.operands)) != mlir.results(combining):
        return None
    adds = combining.name in ("stablehlo.add", "stablehlo.multiply")
    return None if adds and not has_numbers(op) else REDUCTIONS.get(combining.name)


def _parted(x: jax.Array, dim: int, count: int) -> jax.Array:
    """So many equal parts of a dimension, along a new one in front."""
    return jnp.moveaxis(x.reshape(*x.shape[:dim], count, -1, *x.shape[dim + 1 :]), dim, 0)


def _merged(x: jax.Array, dim: int) -> jax.Array:
    """What lies along dimension 0, one behind the other along another of what is left."""
    sizes = np.array(x.shape[1:])
    sizes[dim] *= len(x)
    return jnp.moveaxis(x, 0, dim).reshape(sizes)
