"""Reweight: a sum of w_b g_b is the gradient with one operand of each site scaled by weights.

    %g = dot_general %h[b, d], %l[b, f] over b
        =>  %s = dot_general (w[b] %h[b, d]), %l[b, f] over b

No example's gradient is in memory, and there is no second backward pass. The same function,
differentiated by w, gives the inner products of every g_b with a direction.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.ir.traits import Kind, integers, is_linear, ops_of, sums
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.terms.gradient_slices import has_offset
from hlo_surgery.passes.terms.site_functions import laid_along_split
from hlo_surgery.passes.terms.slice_functions import raise_wide, ruled
from hlo_surgery.passes.terms.steps import (
    Axis,
    GradientSlice,
    Input,
    Known,
    Lifted,
    Split,
    Step,
    is_made,
)

# Of what these make, every element has a product with each example's weight in it.
REACHING = ops_of(Kind.MOVES) | {
    f"stablehlo.{name}"
    for name in ("add", "convert", "divide", "dot_general", "multiply", "negate", "reduce")
}


def reweighted(
    sliced: GradientSlice,
    known: Known,
    weights: Array,
    scale: Any,
    finite: Array | None,
    wide: bool = False,
) -> Array:
    """The sum of w_b g_b for a mean loss over `scale` examples, in the gradient's precision.

    Where `finite` is given, examples that are not are left out, whatever they hold. `wide`: in
    float32, where the module rounds to less; see `is_exact_in_float32`.
    """
    contracted = partial(_run, sliced, known, scale, finite, wide)
    if not has_offset(sliced):
        return beyond_products(contracted(weights), sliced, weights)
    # Affine in the weights: apart, a large offset takes no digits of what is weighted.
    offset, moved = jax.jvp(contracted, (jnp.zeros_like(weights),), (weights,))
    return moved + jnp.sum(weights).astype(offset.dtype) * offset


def beyond_products(total: Array, sliced: GradientSlice, weights: Array) -> Array:
    """A sum of w_b g_b, or of |w_b g_b|**2, with what weights that are no numbers make of zeros:
    those that no product with an operand reaches too, as rows of a table that nobody looks up.
    """
    if all(step.op.name in REACHING for step in sliced.steps):
        return total
    # A sum of numbers, as the total is: on many devices both are sent as one.
    none = jnp.asarray(jnp.nan, total.dtype)
    return total + jnp.sum(jnp.where(jnp.isfinite(weights), jnp.zeros_like(none), none))


def is_exact_in_float32(sliced: GradientSlice) -> bool:
    """Whether a widenable slice rounds nothing once in float32, operands with weights neither: it
    adds up rows, and multiplies none, which matrix units would do with 16 bits.
    """
    return all(s.op.name == "stablehlo.scatter" for s in sliced.sites)


def _run(
    sliced: GradientSlice,
    known: Known,
    scale: Any,
    finite: Array | None,
    wide: bool,
    weights: Array,
) -> Array:
    """The slice on all examples at once; where the weights are zero, its affine ops' offset."""
    made: dict[Value, Array] = {}

    def operand(key: Input) -> Array:
        value, axis = key
        if is_made(key, made):
            return made[value]
        x = known[value]
        if isinstance(axis, Lifted):
            return weighted_rows(x, weights, finite)
        if isinstance(axis, Split) and not axis.is_site and mlir.is_inexact(value):
            # No site sums these rows.
            own = widened(of_real_examples(x, axis, finite, known))
            each = along_examples(weights * scale, axis, x, known)
            return (own * each.astype(own.dtype)).astype(x.dtype)
        return x

    for step in sliced.steps:
        operands = [operand(key) for key in step.inputs]
        if wide:
            operands = list(map(widened_numbers, operands))
        if step.is_site and _sums_rows(step):
            axis = step.inputs[0][1]
            rows = of_real_examples(operands[0], axis, finite, known)
            made[step.op.results[0]] = _weighted_sum(step, rows, weights * scale)
            continue
        if step.is_site:
            operands = weighted_site(step, operands, known, weights * scale, finite)
        function = ruled(step.op, raise_wide(step) if wide else raise_op(step.op))
        made |= zip(step.op.results, function(*operands), strict=True)
    return operand(sliced.output)


def weighted_rows(rows: Array, weights: Array, finite: Array | None) -> Array:
    """The sum over b of w_b x_b of rows [B, ...], of the `finite` alone."""
    own = of_real_examples(rows, PerExample(0), finite, {})
    return jnp.tensordot(weights.astype(rows.dtype), own, 1, precision="highest")


def _sums_rows(site: Step) -> bool:
    """Whether a site adds up examples' rows, from zero."""
    op = site.op
    if op.name != "stablehlo.reduce" or len(op.results) != 1 or not sums(op, 0):
        return False
    return isinstance(site.inputs[0][1], PerExample) and is_splat(op.operands[1], 0)


def _weighted_sum(site: Step, rows: Array, weights: Array) -> Array:
    """The sum as a product with the weights: a sum of weighted rows of some shapes, such as
    [8, 10, 4096], is wrong by XLA's fusions of jaxlib 0.10 on CPU.
    """
    axis, dims = site.inputs[0][1], integers(site.op, "dimensions")
    assert isinstance(axis, PerExample)
    own = jnp.sum(widened(rows), tuple(d for d in dims if d != axis.dim))
    along = along_examples(weights, axis, rows, {}).ravel().astype(own.dtype)
    place = sum(d < axis.dim for d in range(rows.ndim) if d not in dims)
    return jnp.tensordot(along, own, (0, place), precision="highest").astype(rows.dtype)


def widened_numbers(x: Array) -> Array:
    """Widened, but for indices."""
    return widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def weighted_site(
    site: Step,
    operands: list[Array],
    known: Known,
    weights: Array,
    finite: Array | None,
) -> list[Array]:
    """One operand in which the site is linear scaled by weights; all rid of what is not finite."""
    # What examples have in common is none's to weigh.
    carrying = [
        i
        for i, (value, axis) in enumerate(site.inputs)
        if isinstance(axis, PerExample | Split) and mlir.is_inexact(value)
    ]
    found = [
        of_real_examples(x, site.inputs[i][1], finite, known) if i in carrying else x
        for i, x in enumerate(operands)
    ]
    # The smaller one; of two alike the last, which came back through the loss: what came from in
    # front, the first, would be kept beside its weighted self.
    linear = [i for i in carrying if is_linear(site.op, frozenset([i]))]
    number = min(reversed(linear), key=lambda i: found[i].size)
    weight = along_examples(weights, site.inputs[number][1], found[number], known)
    found[number] = found[number] * weight.astype(found[number].dtype)
    return found


def of_real_examples(x: Array, axis: Axis, real: Array | None, known: Known) -> Array:
    """The examples of an operand that count, as no padding does; zero for the others."""
    if real is None or axis is None:
        return x
    return jnp.where(along_examples(real, axis, x, known), x, jnp.zeros_like(x))


def along_examples(weights: Array, axis: Axis, x: Array, known: Known) -> Array:
    """Weights by example, laid along the dimension or dimensions of x that hold the examples."""
    if isinstance(axis, Split):
        return laid_along_split(weights, axis, known, x)
    assert isinstance(axis, PerExample)
    weights = jnp.repeat(weights, axis.after)
    spread = jnp.concatenate([weights] * axis.before) if axis.before > 1 else weights
    return jnp.expand_dims(spread, [d for d in range(x.ndim) if d != axis.dim])
