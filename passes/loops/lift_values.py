"""Lift values: beside a sum that a loop or branch makes, every example's own, [B, *shape].

    %r = while (%c = %zero) { %n = add %c, %site }
        =>  a second carry, [B, *shape], to which each example adds alone

This is exact whatever the loops and branches do, and takes B times the memory of the value.
"""

from hlo_surgery.passes.emit.rebuild import add_carries, extend_results, extend_return
from hlo_surgery.passes.emit.splice import LIFT, splice_known
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, Values
from hlo_surgery.passes.loops.loop_sums import reached_values
from hlo_surgery.passes.strategies.lift import lifted_gradients
from hlo_surgery.passes.terms.gradient_slices import gradient_slice
from hlo_surgery.passes.terms.slice_functions import slice_function
from hlo_surgery.passes.terms.steps import Axes, Known


def lift_control_flow(axes: Axes, block: Block, outputs: Values) -> None:
    """Lift every sum over the examples that a loop or branch makes and a block's outputs rest on.

    Loops and branches are rebuilt with more results, and `axes` knows the lifted version of each.
    """
    _lift_block(axes, block, reached_values(axes, outputs))


def _lift_block(axes: Axes, block: Block, reached: set[Value]) -> None:
    """Lift a block's loops and branches in program order: each finds what it needs lifted."""
    for op in mlir.operations(block):
        if op.name in mlir.CONTROL_FLOW and not reached.isdisjoint([*op.results, *_arguments(op)]):
            _lift_op(axes, op, reached)


def _arguments(op: Operation) -> Values:
    return list(mlir.blocks(op)[1].arguments) if op.name == "stablehlo.while" else []


def _lift_op(axes: Axes, op: Operation, reached: set[Value]) -> None:
    """Rebuild a loop or branch to return its reached results' lifted versions as well."""
    loops, lifted = op.name == "stablehlo.while", axes.lifted
    blocks = mlir.blocks(op)
    states = zip(op.results, _arguments(op) or op.results, strict=True)
    numbers = [i for i, pair in enumerate(states) if not reached.isdisjoint(pair)]
    outside = [v for v in mlir.captured(op) if v in reached and v not in lifted]
    initial = [op.operands[i] for i in numbers] if loops else []
    made = lift_before(axes, [*outside, *initial], op)
    lifted.update(zip(outside, made[: len(outside)], strict=True))
    operands = made[len(outside) :]
    if loops:
        carried = [_arguments(op)[i] for i in numbers]
        lifted.update(zip(carried, add_carries(op, operands), strict=True))
    for block in blocks[1:] if loops else blocks:
        _lift_block(axes, block, reached)
        end = mlir.return_operation(block)
        extend_return(end, lift_before(axes, [end.operands[i] for i in numbers], end))
    renewed = extend_results(op, operands, [*axes.by_value, reached])
    results = mlir.results(renewed)
    lifted.update(zip([results[i] for i in numbers], results[-len(numbers) :], strict=True))


def lift_before(axes: Axes, values: Values, before: Operation) -> Values:
    """Lifted versions of values of one block, computed in front of an op."""
    if not values:
        return []
    slices = [gradient_slice(axes, v) for v in values]
    functions = [slice_function(s, axes.size, is_mean=True, count=axes.count) for s in slices]
    inputs = (value for f in functions for value in f.values)

    def lifted(known: Known) -> Arrays:
        return [lifted_gradients(function, known, axes.size) for function in functions]

    return splice_known(inputs, lifted, before, scope=LIFT)
