"""Running states: what a loop over the examples carries on, where it meets what one example alone
has.

    c[i] = c[i-1] + e[i] ; loss[i] = x[i] @ w + c[i]        e : [B] a parameter, c carried
        =>  the gradient of e[i] counts the examples from i on, and not example i alone

What a step takes at its own number of what nobody owns is its example's: row i of e. In the
backward pass of a loss that is linear in the state, no example reaches the cotangent that runs
through the steps, and yet it stands for all examples that come after, or before. So where such rows
meet a constant that runs, it is not known whose the result is.
"""

from typing import Any, cast

from hlo_surgery.passes.dataflow.loop_steps import values_from
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.classes import Owners, has_owners, is_bare

WHY = (
    "a loop over the examples carries on a value that rests on no example, and it meets what each "
    "example has of its own: which examples the result belongs to is not shown"
)
HELP = (
    "compute what runs over the examples before the loop, with jax.numpy, and pass each example's "
    "part as a batch argument"
)


def running_states(owners: Owners, block: Block) -> dict[Value, Reason]:
    """The values of a block that is classified in which a running state meets own rows."""
    found: dict[Value, Reason] = {}
    if not owners.parting:
        return found
    batch = [v for v in block.arguments if has_owners(owners.of(v))]
    reached = values_from(batch)
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        if op.name == "stablehlo.while" and op.results[0] in owners.parting:
            for value in _meetings(owners, op, reached):
                found[value] = Reason(WHY, *_place(value), HELP)
    return found


def _meetings(owners: Owners, loop: Operation, reached: set[Value]) -> list[Value]:
    running = values_from(_states(owners, loop), loop)
    found: list[Value] = []
    for op in mlir.nested_operations(loop) if running else ():
        operands = mlir.operands(op)
        rows = any(has_owners(owners.of(v)) and v not in reached for v in operands)
        if rows and any(v in running and is_bare(owners.of(v)) for v in operands):
            found += op.results
    return found


def _states(owners: Owners, loop: Operation) -> list[Value]:
    """Floats that nobody owns, and that a step changes for the next one."""
    body = loop.regions[1].blocks[0]
    returned = mlir.operands(mlir.return_operation(body))
    pairs = zip(body.arguments, returned, strict=True)
    return [
        carry
        for carry, value in pairs
        if value != carry and mlir.is_inexact(carry) and is_bare(owners.of(carry))
    ]


def _place(value: Value) -> tuple[str, str]:
    op = mlir.defining_operation(value)
    assert op is not None
    return op.name, source_line(op)
