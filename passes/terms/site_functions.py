"""Scatter onto: the sum of a scatter into zeros and of another value, as a scatter into that value.

    %s = scatter 0, %i, %u ; %c = convert %s ; %g = add %m, %c      =>      %g = scatter %m, %i, %u

The gradient of a table that is both looked up and multiplied by (a tied embedding and head) is such
a sum. Scattered into place, an example's rows cost what the rows take, and never a table of zeros.

Turned sites: a contraction and the transpose behind it, by the operands in the other order.

    %m = dot_general %x, %dy over b ; %g = transpose %m    =>    %g = dot_general %dy, %x over b

Split examples: the rows of a `Split` operand as [B, ...], and weights laid along them.

a digit to the front:         [.., before * n * after, ..]  ->  [n, .., before * after, ..]
a loop's step, or one place:  [..]                          ->  [n, ..], zero but for one
N rows of a ragged axis:      [.., N, ..]                   ->  [n, .., N, ..], zero but for own
spread:                       [.., n, ..]                   ->  [n, .., n, ..], zero but for one

Rows in order: rows of a ragged axis sorted by owner, so that a site takes an example's alone.

    %g = dot_general %h[N, d], %l[N, f] over N  =>  for windows of its rows: %g += dot_general ..
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.dataflow.ancestors import sums_from_zero
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.mlir import Operation, Value, Values
from hlo_surgery.passes.ir.traits import added_results, integers
from hlo_surgery.passes.raising.indexing import scatter
from hlo_surgery.passes.raising.raise_op import Raised, raise_op
from hlo_surgery.passes.terms.steps import (
    Axis,
    Ends,
    GradientSlice,
    Input,
    Known,
    Place,
    Rows,
    Split,
    Step,
    contracted,
    is_made,
)

DOT = "stablehlo.dot_general"


PASSED_THROUGH = frozenset(["stablehlo.convert", "stablehlo.transpose"])


@dataclass(frozen=True)
class Onto:
    """An add as a scatter onto `other`: the scatter, and the ops that move its result there."""

    scatter: Step
    moves: tuple[Step, ...]
    other: Input

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What is added to, the indices, and the updates."""
        return (self.other, *self.scatter.inputs[1:])

    @property
    def replaced(self) -> Values:
        """What is no longer made."""
        return [step.op.result for step in (self.scatter, *self.moves)]


def turned_sites(steps: Sequence[Step]) -> dict[Value, Operation]:
    """By what a site contracts, the one op that uses it, a transpose that puts the second operand's
    dimensions before the first's: the operands in the other order make that at once. XLA would read
    across what is contracted, once for each use and step of a loop.
    """
    dots = [step.op for step in steps if step.is_site and step.op.name == DOT]
    sites = {op.result: op for op in dots if raise_op(op)}
    uses = _uses(steps)
    return {
        made: step.op
        for step in steps
        if step.op.name == "stablehlo.transpose"
        and (made := step.op.operands[0]) in sites
        and uses[made] == 1
        and list(integers(step.op, "permutation")) == _turned_order(sites[made])
    }


def _uses(steps: Sequence[Step]) -> Counter[Value]:
    return Counter(value for step in steps for value, _ in step.inputs)


def _turned_order(site: Operation) -> list[int]:
    left = contracted(site)[0]
    kept, end = len(left.batch), len(mlir.shape(site.result))
    first = kept + len(left.free)
    return [*range(kept), *range(first, end), *range(kept, first)]


def scatters_onto(steps: Sequence[Step]) -> dict[Value, Onto]:
    """By its result, each add of a scatter into zeros that serves nothing else."""
    makers = {step.op.results[0]: step for step in steps}
    uses = _uses(steps)
    adds = [step for step in steps if step.op.name == "stablehlo.add"]
    found = {step.op.result: _scattered(step, makers, uses) for step in adds}
    return {value: onto for value, onto in found.items() if onto is not None}


def _scattered(add: Step, makers: dict[Value, Step], uses: Counter[Value]) -> Onto | None:
    for key, other in zip(add.inputs, reversed(add.inputs), strict=True):
        chain = _behind(key, makers, uses)
        if chain and not add.is_site and _adds_to_zeros(chain[0].op) and _widens([*chain, add]):
            return Onto(chain[0], tuple(chain[1:]), other)
    return None


def _behind(key: Input, makers: dict[Value, Step], uses: Counter[Value]) -> list[Step]:
    """The steps that make a value for one use alone: moves, and the first that is none."""
    chain: list[Step] = []
    while (
        is_made(key, makers)
        and uses[key[0]] == 1
        and all(step.op.name in PASSED_THROUGH for step in chain)
    ):
        chain.insert(0, makers[key[0]])
        key = chain[0].inputs[0]
    return chain


def _adds_to_zeros(op: Operation) -> bool:
    if op.name != "stablehlo.scatter" or not sums_from_zero(op):
        return False
    return all(added_results(op)) and raise_op(op) is not None


def _widens(steps: Sequence[Step]) -> bool:
    """Whether nothing is rounded on the way: the sum may be taken in its result's type."""
    dtypes = [dtype_of(step.op.result) for step in steps]
    return all(np.can_cast(one, other) for one, other in pairwise(dtypes))


def scatter_onto(onto: Onto, dtype: np.dtype) -> Raised:
    """A function of what `inputs` names, that adds in `dtype`."""
    orders = [
        integers(step.op, "permutation")
        for step in onto.moves
        if step.op.name == "stablehlo.transpose"
    ]
    add = scatter(onto.scatter.op, dtype)
    assert add is not None

    def added(other: Array, indices: Array, updates: Array) -> Arrays:
        for order in reversed(orders):
            other = lax.transpose(other, [order.index(d) for d in range(len(order))])
        (total,) = add(other, indices, updates)
        for order in orders:
            total = lax.transpose(total, order)
        return (total,)

    return added


def exposed_split(x: Array, split: Split, known: Known, count: Any) -> Array:
    """[B, *operand of one example], `count` times where the op that takes it sums no rows."""
    front = len(split.places)
    own = x[(None,) * front]
    for number, place in enumerate(split.places):
        moved = [p for n, p in enumerate(split.places[:number]) if n not in split.spread]
        own = _exposed(own, number, front, _left(place, moved), number in split.spread, known)
    sizes = tuple(place.size for place in split.places)
    own = jnp.broadcast_to(own, (*sizes, *own.shape[front:])).reshape(-1, *own.shape[front:])
    if split.is_site or not jnp.issubdtype(x.dtype, jnp.inexact):
        return own
    return (widened(own) * jnp.asarray(count, widened(own).dtype)).astype(x.dtype)


def _left(place: Place, moved: Sequence[Place]) -> Place:
    """A place in what is left of its dimension where other digits of it are at the front."""
    axis = place.axis
    for other in moved:
        if axis is None or other.axis is None or other.axis.dim != axis.dim:
            continue
        if other.axis.before < axis.before:
            axis = replace(axis, before=axis.before // other.length)
        else:
            axis = replace(axis, after=axis.after // other.length)
    return replace(place, axis=axis)


def _exposed(x: Array, number: int, front: int, place: Place, spread: bool, known: Known) -> Array:
    if place.axis is None:
        at = _current(place, known)
        return x if at is None else _unless(x, _counted(x, number, place.size) == at)
    dim, axis = place.axis.dim + front, place.axis
    split = apart(x, dim, place.length, axis)
    if spread or place.owner is not None:
        rows = _counted(split, dim + 1, place.length) + jnp.int32(place.first)
        rows = rows if place.owner is None else known[place.owner][rows]
        kept = _unless(split, _counted(split, number, place.size) == rows)
        return kept.reshape(*kept.shape[:dim], *x.shape[dim:])
    moved = jnp.moveaxis(split, dim + 1, number)
    left = jnp.squeeze(moved, number + 1)
    left = left.reshape(*left.shape[:dim], -1, *left.shape[dim + 2 :])
    padding = [(0, 0)] * left.ndim
    padding[number] = (place.first, place.size - place.first - place.length)
    return jnp.pad(left, padding)


def apart(x: Array, dim: int, length: int, axis: PerExample) -> Array:
    """A dimension as three, the places of a digit in the middle."""
    return x.reshape(*x.shape[:dim], axis.before, length, axis.after, *x.shape[dim + 1 :])


def _counted(x: Array, dim: int, size: int) -> Array:
    """0, 1, 2.. along a dimension, of size 1 along the others of x."""
    others = [d for d in range(x.ndim) if d != dim]
    return jnp.expand_dims(jnp.arange(size, dtype=jnp.int32), others)


def _unless(x: Array, kept: Array) -> Array:
    return jnp.where(kept, x, jnp.zeros_like(x))


def _current(place: Place, known: Known) -> Array | int | None:
    """The place along a digit that the step at hand, or the program, takes; None where all do."""
    if place.step is None:
        return place.at
    number = known[place.step]
    steps = tuple(range(len(place.numbers)))
    step = number
    if place.numbers != steps:
        step = jnp.argmax(jnp.asarray(place.numbers, number.dtype) == number)
    return step if place.table == steps else jnp.asarray(place.table)[step]


def laid_along_split(weights: Array, split: Split, known: Known, x: Array) -> Array:
    """Numbers of the examples, [B], along the dimensions of an operand that hold them."""
    by_digit = weights.reshape([place.size for place in split.places])
    return by_digit[tuple(_places_along(place, known, x) for place in split.places)]


def _places_along(place: Place, known: Known, x: Array) -> Array | int:
    """The place along a digit that each element of x is at, of size 1 along other dimensions."""
    if place.axis is None:
        at = _current(place, known)
        assert at is not None, "an operand of examples has all digits of the batch"
        return at
    dim = place.axis.dim
    return jnp.expand_dims(whose(place, known), [d for d in range(x.ndim) if d != dim])


def whose(place: Place, known: Known) -> Array:
    """The place along a digit that each element of a dimension is at."""
    assert place.axis is not None
    places = jnp.arange(place.along, dtype=jnp.int32) // place.axis.after % place.length
    rows = places + place.first
    return rows if place.owner is None else known[place.owner][rows]


def in_order(sliced: GradientSlice) -> GradientSlice:
    """The same, but sites that sum rows of a ragged axis take them in the order of owners."""
    kept = [onto.scatter for onto in scatters_onto(sliced.steps).values()]
    steps = tuple(step if step in kept else _in_order(step) for step in sliced.steps)
    return replace(sliced, steps=steps)


def _in_order(step: Step) -> Step:
    axes = [axis for _, axis in step.inputs if axis is not None]
    places = [axis.places[0] for axis in axes if isinstance(axis, Split) and axis.is_site]
    told = {(p.owner, Ends(p.size, p.first, p.length)) for p in places}
    whole = all(isinstance(axis, Split) and len(axis.places) == 1 for axis in axes)
    if len(told) != 1 or len(places) < len(axes) or not whole or raise_op(step.op) is None:
        return step
    ((owner, ends),) = told
    if owner is None:
        return step
    width = -(-ends.length // (2 * ends.size))
    rows = ((v, _rows(axis, width)) for v, axis in step.inputs)
    return Step(step.op, (*rows, (owner, ends)))


def _rows(axis: Axis, width: int) -> Axis:
    return Rows(axis.places[0], width) if isinstance(axis, Split) else axis


def rows_in_order(x: Array, rows: Rows, known: Known) -> Array:
    """[.., before, rows, after, ..]."""
    place, axis = rows.place, rows.place.axis
    assert place.owner is not None
    assert axis is not None
    order = jnp.argsort(known[place.owner][place.first : place.first + place.length])
    parted = apart(x, axis.dim, place.length, axis)
    return jnp.take(parted, order, axis.dim + 1, mode="clip")


def ends_in_order(owners: Array, ends: Ends) -> Array:
    """[B, 2]: where each example's rows begin and end."""
    ordered = jnp.sort(owners[ends.first : ends.first + ends.length])
    places = jnp.searchsorted(ordered, jnp.arange(ends.size + 1)).astype(jnp.int32)
    return jnp.stack([places[:-1], places[1:]], 1)


def by_windows(site: Step, function: Raised) -> Raised:
    """What a site sums of one example, from rows in order and its ends."""
    axes = [axis for _, axis in site.inputs]
    width = next(axis.width for axis in axes if isinstance(axis, Rows))

    def summed(*operands: Array) -> Arrays:
        begin, end = operands[-1]
        pairs = list(zip(operands[:-1], axes, strict=False))

        def window(start: Array) -> Arrays:
            return function(*(_window(x, axis, start, end) for x, axis in pairs))

        def go_on(state: tuple[Array, Any]) -> tuple[Array, Any]:
            start, sums = state
            return start + width, [s + x for s, x in zip(sums, window(start), strict=True)]

        kinds = jax.eval_shape(window, begin)
        zeros = [jnp.zeros(kind.shape, wide_dtype(kind.dtype)) for kind in kinds]
        _, sums = lax.while_loop(lambda state: state[0] < end, go_on, (begin, zeros))
        return tuple(s.astype(kind.dtype) for s, kind in zip(sums, kinds, strict=True))

    return summed


def _window(x: Array, axis: Axis, start: Array, end: Array) -> Array:
    """Rows from `start` on, and not from `end` on; others are zero."""
    if not isinstance(axis, Rows):
        return x
    assert axis.place.axis is not None
    dim = axis.place.axis.dim
    # Of the last window there may be less.
    first = jnp.minimum(start, axis.place.length - axis.width)
    taken = lax.dynamic_slice_in_dim(x, first, axis.width, dim + 1)
    rows = first + _counted(taken, dim + 1, axis.width)
    own = _unless(taken, (rows >= start) & (rows < end))
    return own.reshape(*x.shape[:dim], -1, *x.shape[dim + 3 :])
