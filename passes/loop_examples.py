"""Loop: one example's gradient at a time, accumulated; twice the parameter of memory, whatever the statistic.

acc = 0 ; for b in range(B): g = slice(operands[b]) ; acc += (g, phi(g)) ; mean = acc / B
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.mlir import Value
from hlo_surgery.passes.gradient_slices import Axis
from hlo_surgery.passes.slice_functions import SliceFunction, example_position, exposed_examples, merge_example

Summand = Callable[..., jax.Array]


def looped_gradients(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    summands: Sequence[Summand],
    rows: Sequence[Summand],
    beside: tuple[jax.Array, ...] = (),
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Sums over the examples of each summand of the gradient, and each of `rows` of it for every example, stacked.

    The summands also take each example's entry of the arrays `beside`.
    """
    axes = [axis for _, axis in function.inputs]
    exposed = exposed_examples(function, known, size)

    def of_example(b: jax.Array) -> jax.Array:
        return function.of_one(*(_example(x, axis, b) for x, axis in zip(exposed, axes, strict=True)))

    def step(sums: list[jax.Array], b: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        gradient = of_example(b)
        more = [lax.dynamic_index_in_dim(x, b, keepdims=False) for x in beside]
        added = [total + summand(gradient, *more) for total, summand in zip(sums, summands, strict=True)]
        return added, [row(gradient) for row in rows]

    shape = jax.eval_shape(of_example, jnp.int32(0))
    entries = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in beside]
    kinds = (jax.eval_shape(summand, shape, *entries) for summand in summands)
    start = [jnp.zeros(kind.shape, kind.dtype) for kind in kinds]
    return lax.scan(step, start, jnp.arange(size, dtype=jnp.int32))


def _example(exposed: jax.Array, axis: Axis, b: jax.Array) -> jax.Array:
    position = example_position(axis)
    if position is None:
        return exposed
    return merge_example(lax.dynamic_index_in_dim(exposed, b, position, keepdims=False), axis)
