"""Added values: what the steps of a loop add to a carry that is nothing but their sum.

%r = while (%c = %zero) { return add (add %c, %a), %b }        =>  %a, %b
"""

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value


def added_values(loop: Operation, number: int) -> list[Value] | None:
    """The values that a step adds to a carry; None where the carry is used in another way."""
    condition, body = (region.blocks[0] for region in loop.regions)
    carry, added = body.arguments[number], list[Value]()
    if len(list(carry.uses)) != 1 or list(condition.arguments[number].uses):
        return None
    pending = [mlir.operands(mlir.return_operation(body))[number]]
    carried = 0
    while pending:
        value = pending.pop()
        op = mlir.defining_operation(value)
        if value == carry:
            carried += 1
        elif (
            op is not None
            and op.name == "stablehlo.add"
            and op.block == body
            and len(list(value.uses)) == 1
        ):
            pending += op.operands
        else:
            added.append(value)
    return added if carried == 1 else None
