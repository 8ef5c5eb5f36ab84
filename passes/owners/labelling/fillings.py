"""Fillings: whether all that nobody owns, in a value of which examples own the rest, is zero.

    %p = pad %mask, 0 ; %w = multiply %p, %n        zero in the rows behind the mask's, whatever %n

What is padded and masked holds nothing of a constant that it is multiplied with.
"""

from collections.abc import Sequence

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Class, Owned
from hlo_surgery.passes.owners.labelling.labels import NONE
from hlo_surgery.passes.owners.owners import Owners

# The operands of which each element of the result is one, in another type or not.
TAKEN = {
    "stablehlo.broadcast_in_dim": (0,),
    "stablehlo.convert": (0,),
    "stablehlo.dynamic_slice": (0,),
    "stablehlo.dynamic_update_slice": (0, 1),
    "stablehlo.pad": (0, 1),
    "stablehlo.reshape": (0,),
    "stablehlo.reverse": (0,),
    "stablehlo.slice": (0,),
    "stablehlo.transpose": (0,),
}
# The operands of which each makes zeros of its own zeros.
FACTORS = {"stablehlo.multiply": (0, 1), "stablehlo.and": (0, 1), "stablehlo.divide": (0,)}
Known = dict[Value, bool]


def makes_zeros(
    owners: Owners, op: Operation, classes: Sequence[Class], known: Known | None = None
) -> bool:
    """Whether all elements of nobody in an op's result are zero, or NaN; `classes`: of its
    operands. Such an element rests on elements of nobody alone.
    """
    known = {} if known is None else known
    pairs = list(zip(op.operands, classes, strict=True))
    if taken := _taken(op):
        return all(_are_zeros(owners, *pairs[i], known) for i in taken)
    if op.name in FACTORS:
        return any(_are_zeros(owners, *pairs[i], known) for i in FACTORS[op.name])
    if op.name == "stablehlo.select":
        predicate, _, otherwise = (_are_zeros(owners, *pair, known) for pair in pairs)
        return predicate and otherwise
    return False


def _taken(op: Operation) -> Sequence[int]:
    if op.name == "stablehlo.concatenate":
        return range(len(op.operands))
    if op.name == "stablehlo.scatter":
        return (0, 2) if linearity.overwrites(op) else ()
    return TAKEN.get(op.name, ())


def _are_zeros(owners: Owners, value: Value, its: Class, known: Known) -> bool:
    """The same of a value; not of all that is nobody's, as of a constant of the batch that is made
    of what examples own.
    """
    if value not in known:
        known[value] = False
        known[value] = isinstance(its, Owned) and _fills(owners, value, its, known)
    return known[value]


def _fills(owners: Owners, value: Value, its: Owned, known: Known) -> bool:
    if not (its.labels.owners == NONE).any() or is_splat(value, 0):
        return True
    op = mlir.defining_operation(value)
    if op is None or its.is_shared:
        return False
    if op.name == mlir.BARRIER:
        number = mlir.results(op).index(value)
        return _are_zeros(owners, op.operands[number], owners.at(op)[number], known)
    return makes_zeros(owners, op, owners.at(op), known)
