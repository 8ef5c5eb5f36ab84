"""Loop: one example's gradient at a time, accumulated; twice the parameter of memory, whatever the statistic.

acc = 0 ; for b in range(B): g = slice(operands[b]) ; acc += (g, phi(g)) ; mean = acc / B
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.lattice import PerExample
from hlo_surgery.passes.slice_functions import SliceFunction, example_position, expose_examples, merge_example

Summand = Callable[[jax.Array], jax.Array]


def looped_gradients(
    function: SliceFunction, operands: Sequence[jax.Array], size: int, summands: Sequence[Summand], stacked: bool
) -> tuple[list[jax.Array], jax.Array | None]:
    """Sums over the examples of each summand of the gradient, and all the gradients if `stacked`."""
    exposed = [
        x if axis is None else expose_examples(x, axis, size)
        for x, (_, axis) in zip(operands, function.inputs, strict=True)
    ]

    def of_example(b: jax.Array) -> jax.Array:
        pairs = zip(exposed, function.inputs, strict=True)
        return function.of_one(*(x if axis is None else _example(x, axis, b) for x, (_, axis) in pairs))

    def step(sums: list[jax.Array], b: jax.Array) -> tuple[list[jax.Array], jax.Array | None]:
        gradient = of_example(b)
        added = [total + summand(gradient) for total, summand in zip(sums, summands, strict=True)]
        return added, gradient if stacked else None

    shape = jax.eval_shape(of_example, jnp.int32(0))
    start = [jnp.zeros(kind.shape, kind.dtype) for kind in (jax.eval_shape(s, shape) for s in summands)]
    return lax.scan(step, start, jnp.arange(size, dtype=jnp.int32))


def _example(exposed: jax.Array, axis: PerExample, b: jax.Array) -> jax.Array:
    one = lax.dynamic_index_in_dim(exposed, b, example_position(axis), keepdims=False)
    return merge_example(one, axis)
