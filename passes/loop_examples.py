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

Summand = Callable[[jax.Array], jax.Array]


def looped_gradients(
    function: SliceFunction, known: Mapping[Value, jax.Array], size: int, summands: Sequence[Summand], stacked: bool
) -> tuple[list[jax.Array], jax.Array | None]:
    """Sums over the examples of each summand of the gradient, and all the gradients if `stacked`."""
    axes = [axis for _, axis in function.inputs]
    exposed = exposed_examples(function, known, size)

    def of_example(b: jax.Array) -> jax.Array:
        return function.of_one(*(_example(x, axis, b) for x, axis in zip(exposed, axes, strict=True)))

    def step(sums: list[jax.Array], b: jax.Array) -> tuple[list[jax.Array], jax.Array | None]:
        gradient = of_example(b)
        added = [total + summand(gradient) for total, summand in zip(sums, summands, strict=True)]
        return added, gradient if stacked else None

    shape = jax.eval_shape(of_example, jnp.int32(0))
    start = [jnp.zeros(kind.shape, kind.dtype) for kind in (jax.eval_shape(s, shape) for s in summands)]
    return lax.scan(step, start, jnp.arange(size, dtype=jnp.int32))


def _example(exposed: jax.Array, axis: Axis, b: jax.Array) -> jax.Array:
    position = example_position(axis)
    if position is None:
        return exposed
    return merge_example(lax.dynamic_index_in_dim(exposed, b, position, keepdims=False), axis)
