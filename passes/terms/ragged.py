"""Ragged axes: whose each row is, and which examples are found to meet as the program runs.

    %s = gather %nodes, %i     rows of a new axis: row e is of whom row %i[e] of %nodes is
    %m = scatter %z, %j, %s    rows of an axis that is known: which those of %s must fit

Ids say whose each row of an argument is. Elsewhere a row rests on rows of its own example alone, if
the two sides of each op that takes rows by indices agree. No program shows that they do, so that
they are compared in each run: examples that meet others have no gradient of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, cast

import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.axes.state import is_rows
from hlo_surgery.passes.dataflow.ancestors import behind_barriers
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.emit.rebuild import copy_before
from hlo_surgery.passes.emit.splice import Scope, splice_known
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.errors import Refusal, reason_at
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, Values
from hlo_surgery.passes.structure.digits import Digits, leaves
from hlo_surgery.passes.structure.ragged import GATHER, looked_up, whole_and_rows
from hlo_surgery.passes.terms.gradient_slices import place_along
from hlo_surgery.passes.terms.site_functions import whose
from hlo_surgery.passes.terms.steps import Axes, Known, Place

SCOPE = Scope("rows")
CHANGES = "the indices by which this takes rows change from step to step of a loop"
CHANGES_HELP = "write the loop out, or let all its steps take rows by the same indices"


@dataclass(frozen=True)
class Compared:
    """Rows that are taken of one axis, `whole`, by a column of `indices`, or put there, and how
    they lie. `puts`: whether they are put: those out of range are left out then.
    """

    indices: Value
    column: int
    vector: int
    place: int
    whole: Place
    rows: Place
    puts: bool

    @property
    def values(self) -> Values:
        """What it rests on."""
        owners = (self.whole.owner, self.rows.owner)
        return [self.indices, *(v for v in owners if v is not None)]

    def index(self, known: Known) -> Array:
        """What each index vector takes."""
        vectors = known[self.indices]
        vectors = vectors if self.vector < vectors.ndim else vectors[..., None]
        return jnp.take(vectors, self.column, self.vector)

    def sides(self, known: Known) -> tuple[Array, Array]:
        """By index vector whose row is read, and whose the place is to which it comes."""
        index = self.index(known)
        taken = whose(self.whole, known)[jnp.clip(index, 0, self.whole.along - 1)]
        others = [d for d in range(index.ndim) if d != self.place]
        rows = jnp.broadcast_to(jnp.expand_dims(whose(self.rows, known), others), taken.shape)
        return (rows, taken) if self.puts else (taken, rows)

    def met(self, known: Known, size: int) -> Array:
        """Which examples meet others in it, [B]."""
        index = self.index(known)
        counts = (index >= 0) & (index < self.whole.along) if self.puts else True
        return _differ(*self.sides(known), size, counts)

    def owners(self, known: Known) -> Array:
        """Whose the rows are that are taken; or of places at which some are put, whose these are,
        or nobody's, -1.
        """
        source = self.sides(known)[0].astype(jnp.int32)
        if not self.puts:
            return source.ravel()
        index, size = self.index(known), self.whole.along
        nobodys = jnp.full(size, -1, jnp.int32)
        return nobodys.at[jnp.where(index < 0, size, index)].max(source, mode="drop")


def find_owners(axes: Axes) -> None:
    """Have whose each place of ragged digits is, as values of main."""
    for digit, told in axes.state.owners.items():
        if not isinstance(told[0], Operation):
            axes.owners[digit] = told[0]
            continue
        ops = [op for op in told if isinstance(op, Operation) and _makes_rows(axes, op)]
        # Rows that are taken are known by any op; at a place of an axis any may put some.
        compared = [_compared(axes, op) for op in (ops[:1] if told[0].name == GATHER else ops)]
        if compared:
            values = (v for each in compared for v in each.values)
            owners, last = partial(_owners, compared), _outermost(ops[len(compared) - 1])
            (axes.owners[digit],) = splice_known(values, owners, last, last, scope=SCOPE)


def _owners(compared: Sequence[Compared], known: Known) -> Arrays:
    return [reduce(jnp.maximum, [each.owners(known) for each in compared])]


def crossed(axes: Axes, block: Block) -> Value:
    """Which examples meet others, [B]: all of them where an id is no example's."""
    taking = [op for op in axes.state.structure.lookups if _makes_rows(axes, op)]
    compared = list(dict.fromkeys(_compared(axes, op) for op in taking))
    same = _said_twice(axes)
    ids = [v for _, v in axes.state.structure.ragged or ()]
    told = [v for one, other in same for v in (one.owner, other.owner) if v is not None]
    values = [*(v for each in compared for v in each.values), *ids, *told]

    def found(known: Known) -> Arrays:
        met = [each.met(known, axes.size) for each in compared]
        met += [_differ(whose(one, known), whose(other, known), axes.size) for one, other in same]
        none = [jnp.any((known[v] < 0) | (known[v] >= axes.size)) for v in ids]
        return [reduce(jnp.logical_or, [*met, *none], jnp.zeros(axes.size, bool))]

    (made,) = splice_known(values, found, mlir.return_operation(block), scope=SCOPE)
    return made


def _differ(source: Array, place: Array, size: int, counts: Any = True) -> Array:
    """Which examples read others' rows, or are read, [B]. A row that is nobody's is a constant; who
    reads what is put at nobody's place is not known, so that it may be anybody.
    """
    differs = (source != place) & (source >= 0) & counts
    pairs = jnp.where(differs, jnp.stack([source, place]), size)
    named = jnp.zeros(size, bool).at[jnp.where(pairs < 0, size, pairs)].set(True, mode="drop")
    return named | jnp.any(differs & (place < 0))


def _makes_rows(axes: Axes, op: Operation) -> bool:
    """Whether an op makes examples' own of rows of a ragged axis."""
    held = axes.state.batch_digits(looked_up(axes.state.structure, op)[0])
    return bool(held) and is_rows(axes.state.of(op.result))


def _said_twice(axes: Axes) -> list[tuple[Place, Place]]:
    """Axes that have ids, and by others of these, or by where they lie, owners as well."""
    found: list[tuple[Place, Place]] = []
    for digit, ids in axes.state.structure.ragged or ():
        own = leaves([digit])
        if not axes.state.offsets.keys().isdisjoint(own):
            lies = _along(axes, 0, own)
            told = Place(axes.size, PerExample(0), 0, lies.along, owner=ids)
            found += [(lies, told)] if lies != told else []
    return found


def _compared(axes: Axes, op: Operation) -> Compared:
    """What an op takes rows of, and where they lie."""
    lookup = axes.state.structure.links[op.result].lookup
    assert lookup is not None
    taken, moved = whole_and_rows(op)
    (along,) = _places(axes, taken)
    vectors = op.operands[1]
    told = [(moved, d, lookup.rows.index(d)) for d in _places(axes, moved)]
    told += [(vectors, d, lookup.places.index(d)) for d in _places(axes, vectors)]
    side, dim, place = told[0]
    indices = outside(op.operands[1], _outermost(op))
    if indices is None:
        raise Refusal(reason_at(op, CHANGES, CHANGES_HELP))
    return Compared(
        indices,
        list(lookup.named).index(along),
        lookup.vector,
        place,
        _along(axes, along, axes.state.structure.of(taken)[along]),
        _along(axes, dim, axes.state.structure.of(side)[dim]),
        op.name != GATHER,
    )


def _places(axes: Axes, value: Value) -> list[int]:
    return axes.state.places(value).get(axes.batch[0], [])


def _along(axes: Axes, dim: int, digits: Digits) -> Place:
    """How a dimension of these digits holds the examples."""
    return place_along(axes, axes.batch[0], dim, digits, axes.owners.get)


def _outermost(op: Operation) -> Operation:
    """The op of main that an op is, or lies in."""
    while (around := cast(Any, op).parent).operation.name != "func.func":
        op = around.operation
    return op


def outside(value: Value, before: Operation) -> Value | None:
    """A value as it is in front of the loops and branches that it is in; None where it is made of
    what these change. What a loop hands on as it is, normalising has taken out of it.
    """
    value = behind_barriers(value)
    op = mlir.defining_operation(value)
    if op is None:
        return value if mlir.loops_around(value) == [] else None
    if _outermost(op) == op:
        return value
    operands = [outside(v, before) for v in op.operands]
    if len(op.regions) or any(v is None for v in operands):
        return None
    copied = copy_before(op, cast(Values, operands), before, SCOPE)
    return copied.results[mlir.results(op).index(value)]
