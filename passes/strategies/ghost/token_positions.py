"""Token positions: the dimensions, and sizes, along which a site sums one example's share."""

import math
from collections.abc import Mapping

import jax

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path
from hlo_surgery.passes.terms.contracted_dims import Dims, contracted
from hlo_surgery.passes.terms.steps import Input

Given = Mapping[Input, jax.Array]


def by_position(norms: jax.Array, path: Path, given: Given) -> jax.Array:
    """What stands for one example in the order in which its site sums, [*positions], its dimensions
    as in the operand.

    Where examples and positions are one dimension of the operand, that is one of positions here.
    """
    key, dims = _summed(path)
    axis = key[1]
    alone = axis.dim if isinstance(axis, PerExample) and axis.is_whole else None
    kept = [d for d in dims if d != alone]
    sizes = [given[key].shape[d] for d in kept]
    if math.prod(sizes) != norms.size:
        return norms
    return norms.reshape(sizes).transpose(sorted(range(len(kept)), key=kept.__getitem__))


def _summed(path: Path) -> tuple[Input, Dims]:
    """An operand that holds the examples, and its dimensions that the site sums, in its order."""
    inputs = path.site.inputs
    found = [(inputs[number], own.summed) for number, own in contracted(path.site.op).items()]
    return next((each for each in found if each[0][1] is not None), found[0])
