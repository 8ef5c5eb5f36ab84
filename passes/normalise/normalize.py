"""Normalise: given a module as any frontend dumps it, one flat `main` of StableHLO ops.

CHLO, composites and deprecated ops are legalised, every call is inlined, and a program for each
device becomes one for all. Dead ops stay: they may show what belongs to which example.

    func @main(%x) { %y = call @f(%x) ; return %y }
    func private @f(%x) { return tanh(%x) }            =>

    func @main(%x) { %y = tanh %x ; return %y }
"""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import EVALUATED, is_splat
from hlo_surgery.passes.ir.element_types import is_static_array
from hlo_surgery.passes.ir.inlining import inline_calls
from hlo_surgery.passes.ir.mlir import Module, Value
from hlo_surgery.passes.ir.placement import drop_placement
from hlo_surgery.passes.normalise.called_functions import hold_called
from hlo_surgery.passes.normalise.chunked_slices import split_chunks
from hlo_surgery.passes.normalise.constraints import set_aside
from hlo_surgery.passes.normalise.custom_calls import CallAxes, declare_calls
from hlo_surgery.passes.normalise.devices.devices import join_devices
from hlo_surgery.passes.normalise.devices.kernels import over_devices
from hlo_surgery.passes.normalise.held_constants import hold_constants, holds_constant
from hlo_surgery.passes.normalise.out_of_scope import refuse_effects, refuse_per_device
from hlo_surgery.passes.normalise.per_example_calls import hold_bodies
from hlo_surgery.passes.normalise.prefix_sums import sum_windows
from hlo_surgery.passes.normalise.static_shapes import make_shapes_static

# Ops of older dumps, as dot and broadcast, in the words of newer ones; what has none stays.
OLD_OPS = "stablehlo-legalize-deprecated-ops{fail-on-unused=false}"


def normalize(module: Module, custom_calls: CallAxes | None = None) -> None:
    """Flatten the module in place. `custom_calls`: what is declared of some.

    Raises Refusal where it does more than compute on static arrays, ValueError where a declaration
    does not fit.
    """
    hold_constants(module)
    hold_called(module)
    hold_bodies(module)
    sum_windows(module)
    mlir.run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")
    mlir.run_passes(module, "func.func(chlo-legalize-to-stablehlo)")
    mlir.run_passes(module, f"func.func({OLD_OPS})")
    inline_calls(module)
    declare_calls(module, custom_calls or {})
    join_devices(module)
    refuse_per_device(module)
    constrained = set_aside(module)
    drop_placement(module, but_meshes=constrained or bool(over_devices(module)))
    make_shapes_static(module)
    refuse_effects(module)
    free_invariants(module)
    split_chunks(module)
    free_constants(module)
    pass_barriers(module)


def free_invariants(module: Module) -> None:
    """Use what a loop carries unchanged from outside, so that it is no part of its state.

    That is also a zero to which it adds zeros, as to the gradient of a parameter without use. Inner
    loops come first, so that what they leave as it is counts as unchanged around them.
    """
    loops = [op for op in mlir.all_operations(module) if op.name == "stablehlo.while"]
    for loop in reversed(loops):
        condition, body = (region.blocks[0] for region in loop.regions)
        returned = mlir.operands(mlir.return_operation(body))
        for i, value in enumerate(returned):
            if _stays(loop.operands[i], body.arguments[i], value):
                for carried in (condition.arguments[i], body.arguments[i], loop.results[i]):
                    carried.replace_all_uses_with(loop.operands[i])


def _stays(initial: Value, argument: Value, value: Value) -> bool:
    """Whether a state is what it was, given what it begins as and what a step makes of it."""
    value = _handed_on(value)
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.add" or argument not in map(_handed_on, op.operands):
        return value == argument
    return is_splat(initial, 0) and any(is_splat(v, 0) for v in op.operands)


def _handed_on(value: Value) -> Value:
    """What a value is, behind the barriers of `jax.checkpoint` and converts to its own type."""
    op = mlir.defining_operation(value)
    if op is not None and op.name == mlir.BARRIER and not holds_constant(op):
        return _handed_on(op.operands[mlir.results(op).index(value)])
    if op is not None and op.name == "stablehlo.convert" and op.operands[0].type == value.type:
        return _handed_on(op.operands[0])
    return value


def free_constants(module: Module) -> None:
    """Move constants of loops and branches to main's front, so that no body has them."""
    first = mlir.operations(mlir.body(mlir.main_function(module)))[0]
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.constant" and cast(Any, op.parent).name in mlir.CONTROL_FLOW:
            op.move_before(first)


def pass_barriers(module: Module) -> None:
    """Use what rests on no argument, and single whole numbers, from before the barriers that
    `jax.checkpoint` puts them behind: nothing is saved by computing them again, and what they are
    shows, as the number of the example that a step takes.
    """
    constants: set[Value] = set()
    for op in mlir.all_operations(module):
        if op.name == mlir.BARRIER:
            for operand, result in zip(op.operands, op.results, strict=True):
                if operand in constants or (_is_whole_number(operand) and not holds_constant(op)):
                    result.replace_all_uses_with(operand)
        elif op.name in EVALUATED and constants.issuperset(op.operands):
            constants.update(op.results)


def _is_whole_number(value: Value) -> bool:
    return is_static_array(value) and not mlir.shape(value) and not mlir.is_inexact(value)
