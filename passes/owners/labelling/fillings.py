"""Fillings: whether what nobody owns, in a value of which examples own the rest, may be other than
zero.

    %p = pad %x, 0 ; %q = add %p, %bias     filled: each row behind the examples' holds the bias
    %m = multiply %q, %mask                 not, where those rows of %mask, an example's too, are 0

It is told wherever elements of nobody lie beside the examples', as a part of a value may hold more
of them than the whole. Such an element is made of elements of nobody alone. NaN counts as zero.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Class, Owned, owned_operands
from hlo_surgery.passes.owners.labelling.indexed_moves import SELECT, told_choice
from hlo_surgery.passes.owners.labelling.moves import taken
from hlo_surgery.passes.owners.owners import Owners

ADD = "stablehlo.add"
# The operands of which each element of the result is one, in another type or not.
TAKEN = {
    "stablehlo.broadcast_in_dim": (0,),
    "stablehlo.convert": (0,),
    "stablehlo.dynamic_slice": (0,),
    "stablehlo.dynamic_update_slice": (0, 1),
    "stablehlo.gather": (0,),
    "stablehlo.pad": (0, 1),
    "stablehlo.reshape": (0,),
    "stablehlo.reverse": (0,),
    "stablehlo.slice": (0,),
    "stablehlo.transpose": (0,),
}
# The operands of which each makes zeros of its own zeros.
FACTORS = {
    "stablehlo.and": (0, 1),
    "stablehlo.convolution": (0, 1),
    "stablehlo.divide": (0,),
    "stablehlo.dot_general": (0, 1),
    "stablehlo.multiply": (0, 1),
}


def taken_operands(owners: Owners, op: Operation) -> Sequence[int]:
    """The operands that an op takes elements of, from places that are told, and computes nothing;
    none where it does.
    """
    if op.name == "stablehlo.concatenate":
        return range(len(op.operands))
    if op.name == "stablehlo.scatter":
        return (0, 2) if linearity.overwrites(op) else ()
    if op.name == SELECT:
        return (1, 2) if told_choice(owners, op) else ()
    return TAKEN.get(op.name, ())


def fills(owners: Owners, op: Operation, classes: Sequence[Class]) -> bool:
    """Whether elements of nobody may be other than zero in what an op makes; `classes`: of its
    operands.
    """
    filled = [has_constants(v, known) for v, known in zip(op.operands, classes, strict=False)]
    if choice := told_choice(owners, op):
        dim, is_first = choice
        sides = zip(classes[1:], (is_first, ~is_first), filled[1:], strict=True)
        return any(some and _takes_nobodys(known, dim, own) for known, own, some in sides)
    if moved := taken_operands(owners, op):
        return any(filled[i] for i in moved)
    if op.name in FACTORS:
        return all(filled[i] for i in FACTORS[op.name])
    if op.name == SELECT:
        predicate, chosen, otherwise = filled
        return otherwise or (predicate and chosen)
    own = owned_operands(classes) or {i for i, v in enumerate(op.operands) if mlir.is_inexact(v)}
    if not own or not linearity.is_linear(op, frozenset(own)):
        return True
    return any(filled[i] for i in own) or puts_constants(op, classes)


def _takes_nobodys(known: Class, dim: int, own: npt.NDArray[np.bool_]) -> bool:
    """Whether of the places of one's own along a dimension some are nobody's."""
    if not isinstance(known, Owned):
        return True
    return bool(own.any()) and taken(known.labels, dim, np.flatnonzero(own)).has_nobodys


def has_constants(value: Value, known: Class) -> bool:
    """Whether elements of a value that nobody owns may be other than zero."""
    filled = not isinstance(known, Owned) or known.filled
    return filled and not is_splat(value, 0)


def puts_constants(op: Operation, classes: Sequence[Class]) -> bool:
    """Whether an op adds what is not zero to what examples own, or lays it beside that."""
    own = owned_operands(classes)
    others = (i for i in range(len(classes)) if i not in own)
    put = (i for i in others if has_constants(op.operands[i], classes[i]))
    return any(linearity.is_linear(op, own | {i}) and not _runs_on(op, i) for i in put)


def _runs_on(op: Operation, number: int) -> bool:
    """Whether an operand is a loop's carry, and what the op adds a term of the sum so far."""
    for body in (loop.regions[1].blocks[0] for loop in mlir.enclosing_loops(op)[:1]):
        carries = list(body.arguments)
        if op.operands[number] in carries:
            returned = mlir.operands(mlir.return_operation(body))
            return _is_added_on(op.results[0], returned[carries.index(op.operands[number])])
    return False


def _is_added_on(value: Value, total: Value) -> bool:
    """Whether nothing but additions is done to a value until it is a total, as an unrolled loop
    has them.
    """
    while value != total:
        users = mlir.users(value)
        if len(users) != 1 or users[0].name != ADD:
            return False
        value = users[0].results[0]
    return True
