"""Kept examples: what one example has in an operand, wherever its elements lie.

    %g = dot_general %h, %l over rows of examples 3, 1, 2, 0, 2     =>  row 1 of both for example 1
    %g = add %a, %b             of example 0, of example 1          =>  %a and 0 for example 0

Example b's share of a linear op is the op where all that others own is zero, less the op where only
what nobody owns is left. So an operand is taken with what b owns B times, and what nobody owns
once: in a mean of B examples that makes b's gradient, constants included.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.factors import Meeting, meeting_of
from hlo_surgery.passes.owners.labelling.digits import all_whole
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Kept:
    """An operand with what others own at zero; `labels` say who owns what.

    `counters`: the number of the step of each loop on which that depends. Where another operand is
    taken B times, this one is not: then it is not `is_weighted`.
    """

    labels: Labels
    counters: tuple[Value | None, ...] = ()
    is_weighted: bool = True


@dataclass(frozen=True, eq=False)
class Gathered:
    """The rows of an operand that an example owns, along the digits in which they lie.

    `digits`: the sizes of each dimension's digits; `along`: the numbers, among all digits, of those
    over which the rows are counted. `rows`: [B, m], each example's rows and those of nobody; one
    that is there for no example has the number of all rows. `weights`: [B, m], how often a row
    counts: B times for an owner's, once for nobody's. `labels`: who owns what. Of the op's operands
    one alone `is_weighted`.
    """

    digits: tuple[tuple[int, ...], ...]
    along: tuple[int, ...]
    rows: Rows
    weights: Rows
    labels: Labels
    is_weighted: bool


def kept_operands(
    op: Operation, operands: Sequence[Kept], summed: frozenset[int], size: int
) -> list[Kept | Gathered | None] | None:
    """How each operand shows one example's part in a sum over the examples; None for all of it.

    `operands`: as they are, of nobody for constants and sums. None where the op is no such sum.
    """
    own = frozenset(i for i, x in enumerate(operands) if not x.labels.is_nobodys)
    rows = None if summed else _rows(op, operands, own, size)
    if rows is not None:
        return rows
    if linearity.is_linear(op, own | summed):
        return [x if i in own else None for i, x in enumerate(operands)]
    return None


def _rows(
    op: Operation, operands: Sequence[Kept], own: frozenset[int], size: int
) -> list[Kept | Gathered | None] | None:
    """Rows along the factors over which the op sums, if owners vary along no others."""
    met = _sum_of_rows(op, [x.labels for x in operands])
    if met is None:
        return None
    shown = _by_steps(operands) if _varies_by_steps(met) else _by_rows(met, size)
    weighted = _weighted(op, met)
    found: list[Kept | Gathered | None] = []
    for i, value in enumerate(op.operands):
        layout = _layout(met, i)
        shared = set(layout.along) & set(_varying_axes(met))
        if not shared and i not in own:
            found.append(None)
        elif shared == set(_varying_axes(met)) and layout.shape == mlir.shape(value):
            found.append(shown(met, layout, i == weighted))
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
    """An operand over the factors of its op: each dimension's factors and digits, and all axes."""

    dims: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    along: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, if the factors make up every dimension."""
        return tuple(math.prod(group) for group in self.groups)


def _layout(met: Meeting, number: int) -> _Layout:
    dims = met.rule.operands[number]
    groups = tuple(tuple(d for f in dim for d in met.frame.digits[f]) for dim in dims)
    along = tuple(axis for dim in dims for f in dim for axis in met.frame.axes[f])
    return _Layout(dims, groups, along)


def _by_steps(operands: Sequence[Kept]) -> Callable[[Meeting, _Layout, bool], Kept]:
    """Operands with what others own at the step at hand at zero."""
    counters = _merged_counters(operands)
    return lambda met, layout, is_weighted: Kept(
        met.frame.result(met.apart, layout.dims), counters, is_weighted
    )


def _merged_counters(operands: Sequence[Kept]) -> tuple[Value | None, ...]:
    """The counter of each loop on whose steps any of the operands depends."""
    padded = zip_longest(*(x.counters for x in operands))
    return tuple(next((c for c in several if c is not None), None) for several in padded)


def _by_rows(met: Meeting, size: int) -> Callable[[Meeting, _Layout, bool], Gathered]:
    """Operands with each example's rows, and nobody's."""
    rows, weights = _rows_of_examples(met.apart, size)

    def shown(met: Meeting, layout: _Layout, is_weighted: bool) -> Gathered:
        joint = met.frame.result(met.apart, layout.dims)
        numbers = tuple(layout.along.index(axis) for axis in _varying_axes(met))
        return Gathered(layout.groups, numbers, rows, weights, joint, is_weighted)

    return shown


def _step_axes(met: Meeting) -> int:
    return met.apart.ndim - sum(map(len, met.frame.axes.values()))


def _varies_by_steps(met: Meeting) -> bool:
    return any(count > 1 for count in met.apart.shape[: _step_axes(met)])


def _varying_axes(met: Meeting) -> list[int]:
    counts = enumerate(met.apart.shape)
    return [axis for axis, count in counts if count > 1 and axis >= _step_axes(met)]


def _rows_of_examples(owners: npt.NDArray[np.int32], size: int) -> tuple[Rows, Rows]:
    """[B, m] rows of each example and of nobody, and how often each counts."""
    flat = owners.ravel()
    nobodys = np.flatnonzero(flat == NONE)
    each = [np.flatnonzero(flat == example) for example in range(size)]
    count = max(map(len, each)) + len(nobodys)
    rows = np.full((size, count), len(flat), np.int64)
    weights = np.zeros((size, count), np.int64)
    for example, own in enumerate(each):
        both = np.concatenate([own, nobodys])
        rows[example, : len(both)] = both
        weights[example, : len(own)] = size
        weights[example, len(own) : len(both)] = 1
    return rows, weights


def exposed_kept(
    x: jax.Array, kept: Kept, known: Mapping[Value, jax.Array], size: int, count: Any
) -> jax.Array:
    """[B, *shape]: what each example owns, `count` times; what nobody owns, once."""
    owners = _over_dims(kept, known)[None]
    example = jnp.arange(size, dtype=jnp.int32).reshape(-1, *[1] * x.ndim)
    times = count if kept.is_weighted else 1
    often = jnp.where(owners == example, times, jnp.where(owners == NONE, 1, 0))
    return _times(x[None], often)


def _over_dims(kept: Kept, known: Mapping[Value, jax.Array]) -> jax.Array:
    """Owners at the step at hand, with an axis for each dimension, of its size or of 1."""
    owners = jnp.asarray(all_whole(kept.labels).owners)
    for axis in range(kept.labels.steps):
        counter = kept.counters[axis] if axis < len(kept.counters) else None
        assert counter is not None or owners.shape[0] == 1
        step = known[counter] if counter is not None else 0
        owners = jax.lax.dynamic_index_in_dim(owners, step, 0, keepdims=False)
    return owners


def _times(x: jax.Array, often: jax.Array) -> jax.Array:
    """x as often as told, rounded once; 0 times what is not finite is 0."""
    scaled = (widened(x) * often.astype(widened(x).dtype)).astype(x.dtype)
    return jnp.where(often == 0, jnp.zeros_like(scaled), scaled)


def weighted_by_owner(
    x: jax.Array, kept: Kept, known: Mapping[Value, jax.Array], weights: jax.Array
) -> jax.Array:
    """What each example owns by its weight, [B]; nobody's (-1, and so the last) once."""
    each = jnp.append(weights, jnp.ones((), weights.dtype))[_over_dims(kept, known)]
    return (widened(x) * each.astype(widened(x).dtype)).astype(x.dtype)


def zero_unless(
    x: jax.Array, kept: Kept, known: Mapping[Value, jax.Array], finite: jax.Array
) -> jax.Array:
    """Zero for what examples own that are not `finite`, [B]."""
    return jnp.where(jnp.append(finite, True)[_over_dims(kept, known)], x, jnp.zeros_like(x))


def exposed_rows(x: jax.Array, gathered: Gathered, size: int, count: Any) -> jax.Array:
    """[B, *operand of one example]: m rows along the first digit in which rows lie, one along the
    others.
    """
    digits = [digit for group in gathered.digits for digit in group]
    front = jnp.moveaxis(x.reshape(digits), gathered.along, range(len(gathered.along)))
    rest = front.shape[len(gathered.along) :]
    rows = jnp.take(front.reshape(-1, *rest), gathered.rows, axis=0, mode="fill", fill_value=0)
    if gathered.is_weighted:
        often = jnp.where(gathered.weights == size, count, gathered.weights)
        rows = _times(rows, often.reshape(*often.shape, *[1] * len(rest)))
    return _put_back(rows, gathered, digits)


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
