"""Rows: what one example has in an operand whose rows are told apart by ids.

    %g = dot_general %h[n, d], %l[n, f] over n, owners [n, 1]
        =>  for example b: both with all rows but b's at zero, one of them B times

What nobody owns counts for no example: a site at which it would add anything makes NaN of all.
Examples that were found to meet others have NaN of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.element_types import dtype_of, widened
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.raising.raise_op import Raised, raise_op
from hlo_surgery.passes.raising.single_op import call_op
from hlo_surgery.passes.terms.steps import Rows, Ticket

NONE = -1
BOUNDS = ("start_indices", "limit_indices", "strides")


def tickets(
    met: jax.Array, ticket: Ticket, known: Mapping[Value, jax.Array], size: int
) -> jax.Array:
    """[B, 2]: each example's number, and whether nothing is to be said of it."""
    numbers = jnp.arange(size, dtype=jnp.int32)
    unsaid = (met | _is_stray(ticket, known)).astype(jnp.int32)
    return jnp.stack([numbers, unsaid], 1)


def of_rows(
    axes: Sequence[Any], function: Raised, size: Any, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """What a site makes of one example's rows; behind the operands come owners, and the ticket."""
    own, (*owners, ticket) = operands[: len(axes)], operands[len(axes) :]
    left = iter(owners)
    shown = [
        _shown(x, axis, next(left), ticket[0], size) if isinstance(axis, Rows) else x
        for x, axis in zip(own, axes, strict=True)
    ]
    unsaid = jnp.where(ticket[1] != 0, jnp.nan, 0)
    return tuple(result + unsaid.astype(result.dtype) for result in function(*shown))


def _shown(x: jax.Array, rows: Rows, owners: jax.Array, example: jax.Array, size: Any) -> jax.Array:
    scaled = (widened(x) * size).astype(x.dtype) if rows.is_weighted else x
    return jnp.where(owners == example, scaled, jnp.zeros_like(scaled))


def _is_stray(ticket: Ticket, known: Mapping[Value, jax.Array]) -> jax.Array:
    """Whether rows that nobody owns add anything: told by ones for all that is not zero."""
    op = ticket.op
    own = frozenset(i for i, (_, axis) in enumerate(ticket.inputs) if isinstance(axis, Rows))
    operands: list[jax.Array] = []
    for i, (value, axis) in enumerate(ticket.inputs):
        dtype = dtype_of(op.operands[i])
        if isinstance(axis, Rows):
            nobodys = (known[value] != 0) & (known[axis.owners] == NONE)
            operands.append(nobodys.astype(dtype))
        elif linearity.is_linear(op, own | {i}) or i in linearity.initial_operands(op):
            operands.append(jnp.zeros(mlir.shape(op.operands[i]), dtype))
        else:
            x = known[value]
            operands.append((x != 0).astype(dtype) if mlir.is_inexact(value) else x)
    function = raise_op(op) or call_op(op)
    pairs = zip(op.results, function(*operands), strict=True)
    left = [part for value, result in pairs for part in _used(value, result)]
    return jnp.any(jnp.stack([jnp.any(part != 0) for part in left]))


def _used(value: Value, result: jax.Array) -> list[jax.Array]:
    """What ops take of a site's result: not a last segment, for the rows of nobody, that is cut
    off.
    """
    users = mlir.users(value)
    if not users or any(user.name != "stablehlo.slice" for user in users):
        return [result]
    bounds = [[integers(user, name) for name in BOUNDS] for user in users]
    return [jax.lax.slice(result, *each) for each in bounds]


def weighted_rows(
    x: jax.Array,
    rows: Rows,
    known: Mapping[Value, jax.Array],
    weights: jax.Array,
    finite: jax.Array | None,
) -> jax.Array:
    """All rows at once, each example's by its weight, [B]; zero for those that are not `finite`."""
    owners = known[rows.owners]
    if finite is not None:
        x = jnp.where(jnp.append(finite, False)[owners], x, jnp.zeros_like(x))
    x = jnp.where(owners == NONE, jnp.zeros_like(x), x)
    if not rows.is_weighted:
        return x
    each = jnp.append(weights, jnp.zeros((), weights.dtype))[owners]
    return (widened(x) * each.astype(widened(x).dtype)).astype(x.dtype)


def unless_met(
    ticket: tuple[Value, Any],
    results: Sequence[jax.Array],
    known: Mapping[Value, jax.Array],
    weights: jax.Array,
    finite: jax.Array | None,
) -> tuple[jax.Array, ...]:
    """Sums with weights, NaN where an example counts that met others."""
    value, axis = ticket
    unsaid = known[value] | _is_stray(axis, known)
    unsaid = unsaid if finite is None else unsaid & finite
    nan = jnp.sum(weights * jnp.where(unsaid, jnp.nan, 0).astype(weights.dtype))
    return tuple(result + nan.astype(result.dtype) for result in results)
