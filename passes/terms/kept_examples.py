"""Kept examples: what one example has in an operand, wherever its elements lie.

    %g = dot_general %h, %l over rows of examples 3, 1, 2, 0, 2     =>  row 1 of both for example 1
    %g = add %a, %b             of example 0, of example 1          =>  %a and 0 for example 0

Example b's share of a linear op is the op where all that others own is zero, less the op where only
what nobody owns is left. So an operand is taken with what b owns B times, and what nobody owns
once: in a mean of B examples that makes b's gradient, constants included.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import linearity
from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.factors import Meeting, meeting_of
from hlo_surgery.passes.owners.labelling.digits import all_whole
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels
from hlo_surgery.passes.terms.axes import Counter, Counters, Labelled
from hlo_surgery.passes.terms.steps import Gathered

Known = Mapping[Value, jax.Array]


def kept_operands(
    op: Operation, operands: Sequence[Labelled], summed: frozenset[int]
) -> list[Labelled | Gathered | None] | None:
    """How each operand shows one example's part in a sum over the examples; None for all of it.

    `operands`: as they are, of nobody for constants and sums. None where the op is no such sum.
    """
    own = frozenset(i for i, x in enumerate(operands) if not x.labels.is_nobodys)
    rows = _rows(op, operands, own) if summed.issubset(linearity.initial_operands(op)) else None
    if rows is not None:
        return rows
    if linearity.is_linear(op, own | summed):
        return [x if i in own else None for i, x in enumerate(operands)]
    return _of_one_owner(op, operands, own, summed) or _of_elements(op, operands, own, summed)


def _of_elements(
    op: Operation, operands: Sequence[Labelled], own: frozenset[int], summed: frozenset[int]
) -> list[Labelled | Gathered | None] | None:
    """Factors that lie in different places for different elements of the sum, as of the stages of a
    pipeline: one that reaches all places where owners differ tells whose each product is.
    """
    if len(op.results) > 1 or not linearity.sums(op, 0):
        return None
    met = meeting_of(op, [x.labels for x in operands], max(x.labels.steps for x in operands))
    if met is None or not met.adds_up(0):
        return None
    telling = (i for i in sorted(own) if linearity.is_linear(op, summed | {i}))
    told = next((i for i in telling if set(_varying_axes(met)) <= set(_layout(met, i).along)), None)
    if told is None:
        return None
    joint = met.frame.result(met.apart, _layout(met, told).dims)
    found = [replace(x, is_weighted=False) if i in own else None for i, x in enumerate(operands)]
    return [
        Labelled(joint, _merged_counters(operands)) if i == told else x for i, x in enumerate(found)
    ]


def _of_one_owner(
    op: Operation, operands: Sequence[Labelled], own: frozenset[int], summed: frozenset[int]
) -> list[Labelled | Gathered | None] | None:
    """Operands of one example a step that an op adds to something: one of them, a factor of each
    term, is taken B times. For other examples nothing is added, wherever that is.
    """
    adds = all(linearity.sums(op, number) for number in range(len(op.results)))
    linear = [i for i in sorted(own) if linearity.is_linear(op, summed | {i})]
    if not adds or not linear or any(operands[i].labels.varies for i in own):
        return None
    return [
        replace(x, is_weighted=i == linear[0]) if i in own else None for i, x in enumerate(operands)
    ]


def _rows(
    op: Operation, operands: Sequence[Labelled], own: frozenset[int]
) -> list[Labelled | Gathered | None] | None:
    """Rows along the factors over which the op sums, if owners vary along no others."""
    met = _sum_of_rows(op, [x.labels for x in operands])
    if met is None:
        return None
    counters, weighted = _merged_counters(operands), _weighted(op, met)
    found: list[Labelled | Gathered | None] = []
    for i in range(len(op.operands)):
        layout = _layout(met, i)
        shared = set(layout.along) & set(_varying_axes(met))
        if not shared and i not in own:
            found.append(None)
        elif shared == set(_varying_axes(met)):
            found.append(_gathered(met, layout, counters, i == weighted))
        else:
            return None
    return found if weighted is not None else None


def _weighted(op: Operation, met: Meeting) -> int | None:
    """The first operand that holds rows and is a factor of each term: an index is none."""
    varying = set(_varying_axes(met))
    return next(
        (
            i
            for i in range(len(op.operands))
            if varying & set(_layout(met, i).along) and linearity.is_linear(op, frozenset([i]))
        ),
        None,
    )


def _sum_of_rows(op: Operation, labels: Sequence[Labels]) -> Meeting | None:
    if len(op.results) > 1 or not linearity.sums(op, 0):
        return None
    met = meeting_of(op, labels, max(x.steps for x in labels))
    summed = met and met.adds_up(0) and _varying_axes(met) and not met.keeps_rows()
    return met if summed else None


@dataclass(frozen=True)
class _Layout:
    """An operand over the factors of its op: each dimension's factors and digits, and all axes. A
    dimension that no factors make up has its size for both, and None for axis.
    """

    dims: tuple[tuple[int, ...] | int, ...]
    groups: tuple[tuple[int, ...], ...]
    along: tuple[int | None, ...]


def _layout(met: Meeting, number: int) -> _Layout:
    dims, axes = met.operand_dims(number), met.frame.axes
    groups = [
        (own,) if isinstance(own, int) else tuple(d for f in own for d in met.frame.digits[f])
        for own in dims
    ]
    along = [
        axis
        for own in dims
        for axis in ((None,) if isinstance(own, int) else (a for f in own for a in axes[f]))
    ]
    return _Layout(dims, tuple(groups), tuple(along))


def _merged_counters(operands: Sequence[Labelled]) -> Counters:
    """The counter of each loop on whose steps any of the operands depends."""
    padded = zip_longest(*(x.counters for x in operands))
    return tuple(next((c for c in several if c is not None), None) for several in padded)


def _gathered(met: Meeting, layout: _Layout, counters: Counters, is_weighted: bool) -> Gathered:
    joint = met.frame.result(met.apart, layout.dims)
    numbers = tuple(layout.along.index(axis) for axis in _varying_axes(met))
    owners = met.apart.reshape(*met.apart.shape[: _step_axes(met)], -1)
    return Gathered(layout.groups, numbers, owners, joint, counters, is_weighted)


def _step_axes(met: Meeting) -> int:
    return met.apart.ndim - sum(map(len, met.frame.axes.values()))


def _varying_axes(met: Meeting) -> list[int]:
    counts = enumerate(met.apart.shape)
    return [axis for axis, count in counts if count > 1 and axis >= _step_axes(met)]


def exposed_kept(x: jax.Array, kept: Labelled, known: Known, size: int, count: Any) -> jax.Array:
    """[B, *shape]: what each example owns, `count` times; what nobody owns, once."""
    owners = _over_dims(kept, known)[None]
    example = jnp.arange(size, dtype=jnp.int32).reshape(-1, *[1] * x.ndim)
    is_own, is_nobodys = owners == example, owners == NONE
    if not kept.is_weighted:
        return jnp.where(is_own | is_nobodys, x[None], jnp.zeros_like(x))
    dtype = widened(x).dtype
    return _times(x[None], jnp.where(is_own, jnp.asarray(count, dtype), is_nobodys.astype(dtype)))


def _over_dims(kept: Labelled | Gathered, known: Known) -> jax.Array:
    """Owners at the step at hand, with an axis for each dimension, of its size or of 1."""
    return _at_step(all_whole(kept.labels).owners, kept, known)


def _at_step(table: npt.NDArray[Any], kept: Labelled | Gathered, known: Known) -> jax.Array:
    """What stands in a table, [*steps, ..], for the steps at hand."""
    found = jnp.asarray(table)
    for axis in range(kept.labels.steps):
        counter = kept.counters[axis] if axis < len(kept.counters) else None
        assert counter is not None or found.shape[0] == 1
        step = 0 if counter is None or found.shape[0] == 1 else _step(counter, known)
        found = jax.lax.dynamic_index_in_dim(found, step, 0, keepdims=False)
    return found


def _step(counter: Counter, known: Known) -> jax.Array:
    """The number of the step at hand."""
    number = known[counter.value]
    if counter.numbers == tuple(range(len(counter.numbers))):
        return number
    return jnp.argmax(jnp.asarray(counter.numbers, number.dtype) == number)


def _times(x: jax.Array, often: jax.Array) -> jax.Array:
    """x as often as told, rounded once; 0 times what is not finite is 0."""
    scaled = (widened(x) * often).astype(x.dtype)
    return jnp.where(often == 0, jnp.zeros_like(scaled), scaled)


def weighted_by_owner(
    x: jax.Array, kept: Labelled | Gathered, known: Known, weights: jax.Array
) -> jax.Array:
    """What each example owns by its weight, [B]; nobody's (-1, and so the last) once."""
    each = jnp.append(weights, jnp.ones((), weights.dtype))[_over_dims(kept, known)]
    return (widened(x) * each.astype(widened(x).dtype)).astype(x.dtype)


def zero_unless(
    x: jax.Array, kept: Labelled | Gathered, known: Known, finite: jax.Array
) -> jax.Array:
    """Zero for what examples own that are not `finite`, [B]."""
    return jnp.where(jnp.append(finite, True)[_over_dims(kept, known)], x, jnp.zeros_like(x))


def exposed_rows(
    x: jax.Array, gathered: Gathered, known: Known, size: int, count: Any
) -> jax.Array:
    """[B, *operand of one example]: m rows along the first digit in which rows lie, one along the
    others.
    """
    eager = nullcontext() if any(gathered.counters) else jax.ensure_compile_time_eval()
    with eager:
        rows, own = _rows_of_examples(gathered, known, size)
    digits = [digit for group in gathered.digits for digit in group]
    front = jnp.moveaxis(x.reshape(digits), gathered.along, range(len(gathered.along)))
    rest = front.shape[len(gathered.along) :]
    taken = jnp.take(front.reshape(-1, *rest), rows, axis=0, mode="fill", fill_value=0)
    if gathered.is_weighted:
        dtype, is_own = widened(x).dtype, jnp.arange(rows.shape[1], dtype=jnp.int32) < own
        often = jnp.where(is_own, jnp.asarray(count, dtype), jnp.ones((), dtype))
        taken = _times(taken, often.reshape(-1, *[1] * len(rest)))
    return _put_back(taken, gathered, digits)


def _rows_of_examples(gathered: Gathered, known: Known, size: int) -> tuple[jax.Array, int]:
    """[B, m], the rows of each example and then those of nobody, and how many columns the former
    take. What is no row has the number of all rows.
    """
    ranks, count = _ranks(gathered.owners), gathered.owners.shape[-1]
    is_nobodys = gathered.owners == NONE
    own = int(np.max(ranks + 1, initial=0, where=~is_nobodys))
    nobodys = int(np.max(ranks + 1, initial=0, where=is_nobodys))
    column = np.where(is_nobodys, own + ranks, ranks)
    owners, columns = (_at_step(table, gathered, known) for table in (gathered.owners, column))
    numbers = jnp.arange(count, dtype=jnp.int32)
    rows = jnp.full((size, own + nobodys), count, jnp.int32)
    rows = rows.at[jnp.where(owners == NONE, size, owners), columns].set(numbers, mode="drop")
    if nobodys:
        outside = jnp.where(owners == NONE, columns, own + nobodys)
        rows = rows.at[:, outside].set(numbers, mode="drop")
    return rows, own


def _ranks(owners: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """How many rows of the same owner lie in front of each, [*steps, rows]."""
    order = np.argsort(owners, -1, kind="stable")
    ordered = np.take_along_axis(owners, order, -1)
    places = np.broadcast_to(np.arange(owners.shape[-1]), owners.shape)
    is_first = np.diff(ordered, axis=-1, prepend=ordered[..., :1] - 1) != 0
    first = np.maximum.accumulate(np.where(is_first, places, 0), -1)
    ranks = np.empty(owners.shape, np.int32)
    np.put_along_axis(ranks, order, (places - first).astype(np.int32), -1)
    return ranks


def _put_back(rows: jax.Array, gathered: Gathered, digits: Sequence[int]) -> jax.Array:
    first, length = gathered.along[0], rows.shape[1]
    single = rows.reshape(*rows.shape[:2], *[1] * (len(gathered.along) - 1), *rows.shape[2:])
    behind = jnp.moveaxis(
        single, range(1, 1 + len(gathered.along)), [1 + axis for axis in gathered.along]
    )
    kept = [1 if axis in gathered.along else digit for axis, digit in enumerate(digits)]
    kept[first] = length
    sizes, at = list[int](), 0
    for group in gathered.digits:
        sizes.append(math.prod(kept[at : at + len(group)]))
        at += len(group)
    return behind.reshape(rows.shape[0], *sizes)
