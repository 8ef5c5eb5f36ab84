"""Lift: the gradients of all examples at once, [B, *parameter], by `vmap` of the slice function.

%g = dot_general %h[b, d], %l[b, f] over b  =>  %G[b, d, f] ; statistic = mean of phi(%G) over b ; %g = mean of %G
"""

from collections.abc import Mapping

import jax

from hlo_surgery.mlir import Value
from hlo_surgery.passes.slice_functions import SliceFunction, example_position, exposed_examples, merge_example


def lifted_gradients(function: SliceFunction, known: Mapping[Value, jax.Array], size: int) -> jax.Array:
    """[B, *parameter]: every example's gradient."""
    axes = [axis for _, axis in function.inputs]
    exposed = exposed_examples(function, known, size)

    def of_one(*example: jax.Array) -> jax.Array:
        return function.of_one(*(merge_example(x, axis) for x, axis in zip(example, axes, strict=True)))

    return jax.vmap(of_one, in_axes=[example_position(axis) for axis in axes], axis_size=size)(*exposed)
