"""Outside: an integer of a loop's body, such as an index, as a value that lies before the loop.

    while (%s = %senders, %i, ..) { %c = compare %s, 0 ; %n = select %c, .. }      %n of %senders

Only what is the same at every step: constants, what is carried unchanged, and ops on these.
"""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.following.terms import Following, Term
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.raising.single_op import call_op


def outside(following: Following, value: Value) -> Term | Value | None:
    """The value itself, if no loop or branch is around it, or a term; None where it changes."""
    op = mlir.defining_operation(value)
    if op is None:
        return _carried(following, value)
    if _is_in_main(op):
        return value
    if op.name == mlir.BARRIER:
        return outside(following, op.operands[mlir.results(op).index(value)])
    found = [outside(following, v) for v in op.operands]
    inputs = [x for x in found if x is not None]
    if len(op.regions) or len(inputs) < len(found):
        return None
    raised = raise_op(op) or call_op(op)
    number = mlir.results(op).index(value)
    how = ("raised", value)
    return following.term(how, mlir.shape(value), inputs, lambda *xs: raised(*xs)[number])


def _carried(following: Following, value: Value) -> Term | Value | None:
    """An argument of main, or of a loop that carries it unchanged."""
    block = cast(Any, value.owner)
    loop = block.owner.operation
    if loop.name == "func.func":
        return value
    number = list(block.arguments).index(value)
    body = loop.regions[1].blocks[0] if loop.name == "stablehlo.while" else None
    if body is None:
        return None
    returned = mlir.operands(mlir.return_operation(body))[number]
    same = returned == body.arguments[number]
    return outside(following, loop.operands[number]) if same else None


def _is_in_main(op: Operation) -> bool:
    return cast(Any, op).parent.operation.name == "func.func"
