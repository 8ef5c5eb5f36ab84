"""Token positions: the dimensions, and sizes, along which a site sums one example's share."""

import math
from collections.abc import Mapping, Sequence

import jax

from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.mlir import stablehlo
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path
from hlo_surgery.passes.terms.axes import PerExample
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


def _summed(path: Path) -> tuple[Input, Sequence[int]]:
    """An operand that holds the examples, and its dimensions that the site sums, in its order."""
    op, inputs = path.site.op, path.site.inputs
    match op.name:
        case "stablehlo.dot_general":
            numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
            sides = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
            found = [(key, list(dims)) for key, dims in zip(inputs, sides, strict=True)]
            return next((each for each in found if each[0][1] is not None), found[0])
        case "stablehlo.convolution":
            window = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            return inputs[1], [
                window.kernel_input_feature_dimension,
                *window.kernel_spatial_dimensions,
            ]
        case "stablehlo.scatter":
            rows = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
            rank = len(op.operands[2].type.shape)
            return inputs[2], [d for d in range(rank) if d not in list(rows.update_window_dims)]
        case _:
            return inputs[0], integers(op, "dimensions")
