"""Lift: the gradients of all examples at once, [B, *parameter], by `vmap` of the slice function.

%g = dot_general %h[b, d], %l[b, f] over b  =>  %G[b, d, f] ; statistic = mean of phi(%G) over b ; %g = mean of %G
"""

from collections.abc import Callable, Sequence

import jax

from hlo_surgery.passes.slice_functions import SliceFunction, example_position, expose_examples, merge_example


def lifted_gradients(function: SliceFunction, operands: Sequence[jax.Array], size: int) -> jax.Array:
    """[B, *parameter]: every example's gradient."""
    exposed = [
        x if axis is None else expose_examples(x, axis, size)
        for x, (_, axis) in zip(operands, function.inputs, strict=True)
    ]
    positions = [None if axis is None else example_position(axis) for _, axis in function.inputs]
    return jax.vmap(_merging(function), in_axes=positions, axis_size=size)(*exposed)


def _merging(function: SliceFunction) -> Callable[..., jax.Array]:
    def of_one(*operands: jax.Array) -> jax.Array:
        pairs = zip(operands, function.inputs, strict=True)
        return function.of_one(*(x if axis is None else merge_example(x, axis) for x, (_, axis) in pairs))

    return of_one
