"""Normalise: given a module as any frontend dumps it, one flat `main` of StableHLO ops.

CHLO, composites and deprecated ops are legalised, every call is inlined, and a program for each
device becomes one for all. Dead ops stay: they may show what belongs to which example.

    func @main(%x) { %y = call @f(%x) ; return %y }
    func private @f(%x) { return tanh(%x) }            =>

    func @main(%x) { %y = tanh %x ; return %y }
"""

from collections.abc import Callable
from typing import Any, cast

from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.inlining import COMPOSITE, flatten
from hlo_surgery.passes.ir.mlir import Module, Value
from hlo_surgery.passes.ir.placement import drop_placement
from hlo_surgery.passes.normalise.called_functions import hold_called
from hlo_surgery.passes.normalise.constraints import CONSTRAINT, set_aside
from hlo_surgery.passes.normalise.custom_calls import CallAxes, declare_calls
from hlo_surgery.passes.normalise.devices.devices import join_devices
from hlo_surgery.passes.normalise.devices.kernels import over_devices
from hlo_surgery.passes.normalise.held_constants import hold_constants, holds_constant
from hlo_surgery.passes.normalise.out_of_scope import (
    COLLECTIVES,
    MANUAL,
    TRANSFERS,
    refuse_effects,
    refuse_per_device,
)
from hlo_surgery.passes.normalise.per_example_calls import hold_bodies
from hlo_surgery.passes.normalise.prefix_sums import SCAN, sum_windows
from hlo_surgery.passes.normalise.static_shapes import refuse_dynamic_shapes


def normalize(module: Module, custom_calls: CallAxes | None = None) -> None:
    """Flatten the module in place. `custom_calls`: what is declared of some.

    Raises Refusal where it does more than compute on static arrays, ValueError where a declaration
    does not fit.
    """
    names = mlir.op_names(module)
    for stage, ops in FIRST.items():
        if not ops.isdisjoint(names):
            stage(module)
    flatten(module)
    if custom_calls:
        declare_calls(module, custom_calls)
    names = mlir.op_names(module)
    if not names.isdisjoint({*COLLECTIVES, MANUAL, CUSTOM_CALL}):
        join_devices(module)
        refuse_per_device(module)
        names = mlir.op_names(module)
    constrained = CONSTRAINT in names and set_aside(module)
    drop_placement(module, but_meshes=constrained or bool(over_devices(module)))
    refuse_dynamic_shapes(module)
    for stage, ops in LAST.items():
        if not ops.isdisjoint(names):
            stage(module)


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


# What is done, and the ops without which there is nothing to do.
FIRST: dict[Callable[[Module], None], frozenset[str]] = {
    hold_constants: frozenset([COMPOSITE]),
    hold_called: frozenset([CUSTOM_CALL]),
    hold_bodies: frozenset([COMPOSITE, CUSTOM_CALL]),
    sum_windows: frozenset([COMPOSITE, SCAN]),
}
LAST: dict[Callable[[Module], None], frozenset[str]] = {
    refuse_effects: frozenset([CUSTOM_CALL, *TRANSFERS]),
    free_invariants: mlir.CONTROL_FLOW,
    free_constants: mlir.CONTROL_FLOW,
}
