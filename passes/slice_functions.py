"""Slice functions: given a gradient slice, a JAX function from one example's operands to that example's gradient.

g_b = tail(B * M_b)        M_b: what a site contracts for example b alone; offsets in the tail are added once
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from hlo_surgery.mlir import Value
from hlo_surgery.passes.constants import is_splat
from hlo_surgery.passes.gradient_slices import Axis, GradientSlice, Input, Lifted, Step
from hlo_surgery.passes.linearity import initial_operands
from hlo_surgery.passes.raising import Raised, raise_op
from hlo_surgery.passes.single_op import call_op


@dataclass(frozen=True)
class SliceFunction:
    """`inputs`: values of the module, each with its example axis, or None where all examples see it whole.

    `of_one(operands)`: the example's gradient, `operands` in the order of `inputs`, each with one example.
    `liftable`: whether `vmap` can lift it; a loop works always.
    """

    inputs: tuple[Input, ...]
    of_one: Callable[..., jax.Array]
    liftable: bool


def slice_function(sliced: GradientSlice, size: int, loss_reduction: str) -> SliceFunction:
    """The per-example gradient of one output; for a loss that sums, a B-th of the mean loss's."""
    inputs = sliced.inputs
    raised = [raise_op(step.op) for step in sliced.steps]
    functions = [rule or call_op(step.op) for rule, step in zip(raised, sliced.steps, strict=True)]

    def of_one(*operands: jax.Array) -> jax.Array:
        given = dict(zip(inputs, operands, strict=True))
        known: dict[Value, jax.Array] = {}
        for step, function in zip(sliced.steps, functions, strict=True):
            values = [known[key[0]] if key[0] in known else given[key] for key in step.inputs]
            made = _contributions(step, size, function, values) if step.is_site else function(*values)
            known |= zip(step.op.results, made, strict=True)
        gradient = known[sliced.value] if sliced.steps else given[sliced.output]
        return gradient if loss_reduction == "mean" else gradient / size

    return SliceFunction(inputs, of_one, liftable=None not in raised)


def _contributions(site: Step, size: int, function: Raised, operands: list[jax.Array]) -> Sequence[jax.Array]:
    """B * M_b, on top of what the site adds the examples to."""
    initial = {i: operands[i] for i in initial_operands(site.op)}
    alone = [jnp.zeros_like(x) if i in initial else x for i, x in enumerate(operands)]
    contributions = [contribution * size for contribution in function(*alone)]
    if not initial:
        return contributions
    offsets = [None if is_splat(site.op.operands[i], 0) else x for i, x in initial.items()]
    return [c if o is None else c + o for c, o in zip(contributions, offsets, strict=True)]


def expose_examples(x: jax.Array, axis: Axis, size: int) -> jax.Array:
    """Split the dimension that holds the examples into [before, B, after]."""
    if axis is None or isinstance(axis, Lifted):
        return x
    split = (axis.before, size, axis.after)
    return x.reshape(*x.shape[: axis.dim], *split, *x.shape[axis.dim + 1 :])


def merge_example(x: jax.Array, axis: Axis) -> jax.Array:
    """Join [before, after] of one example to one dimension again."""
    if axis is None or isinstance(axis, Lifted):
        return x
    return x.reshape(*x.shape[: axis.dim], axis.before * axis.after, *x.shape[axis.dim + 2 :])


def example_position(axis: Axis) -> int | None:
    """The dimension that holds the examples once exposed."""
    if axis is None:
        return None
    return 0 if isinstance(axis, Lifted) else axis.dim + 1
