"""Normalise: given a module as any frontend dumps it, one flat `main` of StableHLO ops.

CHLO, composites and deprecated ops are legalised, every call is inlined, and a program for each
device becomes one for all. Dead ops stay: they may show what belongs to which example.

    func @main(%x) { %y = call @f(%x) ; return %y }
    func private @f(%x) { return tanh(%x) }            =>

    func @main(%x) { %y = tanh %x ; return %y }

Prefix sums: `jnp.cumsum` as JAX lowers it for GPUs since 0.11, as it does for all others.

    chlo.scan %x, 0 { add } {dimension = d}   =>   reduce_window add %x over all before

So too for the composite that an export has in place of that op. What it stands for otherwise is a
loop of one position a step; of a sum over windows XLA makes a tree, and the analysis sees that each
example's sums are its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from jax import Array, lax

from hlo_surgery.passes.dataflow.ancestors import hold_constants, is_splat
from hlo_surgery.passes.dataflow.kernels import CUSTOM_CALL
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.mlir import Module, Operation, Value
from hlo_surgery.passes.ir.modules import COMPOSITE, drop_placement, flatten
from hlo_surgery.passes.normalise.calls import CallAxes, declare_calls, hold_functions
from hlo_surgery.passes.normalise.devices import join_devices, over_devices
from hlo_surgery.passes.normalise.out_of_scope import (
    COLLECTIVES,
    CONSTRAINT,
    MANUAL,
    TRANSFERS,
    refuse_dynamic_shapes,
    refuse_effects,
    refuse_per_device,
    set_aside,
)

SCAN = "chlo.scan"


def sum_windows(module: Module) -> None:
    """Put sums over windows in place of scans that add up one array from zero."""
    for op in mlir.all_operations(module):
        composite = op.name == COMPOSITE and mlir.text_attribute(op, "name") == SCAN
        if (composite or op.name == SCAN) and _adds_up(op):
            summed = partial(_summed, *_told(op))
            # For others than GPUs.
            mlir.replace(op, splice(mlir.operands(op), summed, op, platform="cpu"))


def _adds_up(op: Operation) -> bool:
    if len(op.operands) != 2 or len(op.regions) != 1 or 0 in mlir.shape(op.operands[0]):
        return False
    block = mlir.blocks(op)[0]
    returned = mlir.returned(block)
    added = mlir.made_by(returned[0], "stablehlo.add")
    both = added is not None and set(added.operands) == set(block.arguments)
    return both and returned == [returned[0]] * 2 and is_splat(op.operands[1], 0)


def _told(op: Operation) -> tuple[int, bool]:
    """Along which dimension, and whether from the end."""
    named = mlir.attributes(op)
    told = cast(Mapping[str, Any], named.get("composite_attributes", named))
    return told["dimension"].value, told["is_reverse"].value


def _summed(axis: int, backwards: bool, x: Array, _: Array) -> Arrays:
    """All sums, and the last, which is what a scan carries at the end."""
    sums = lax.cumsum(x, axis, reverse=backwards)
    return [sums, lax.index_in_dim(sums, 0 if backwards else -1, axis, keepdims=False)]


def normalize(module: Module, custom_calls: CallAxes | None = None) -> None:
    """Flatten the module in place. `custom_calls`: what is declared of some.

    Raises Refusal where it does more than compute on static arrays, ValueError where a declaration
    does not fit.
    """
    names = mlir.op_names(module)
    for stage, known in FIRST.items():
        if not known.isdisjoint(names):
            stage(module)
    flatten(module)
    if custom_calls:
        declare_calls(module, custom_calls)
    ops = mlir.all_operations(module)
    refuse_dynamic_shapes(ops)
    but_meshes = False
    if not {op.name for op in ops}.isdisjoint({*COLLECTIVES, MANUAL, CUSTOM_CALL, CONSTRAINT}):
        # What is made of a device's number is told outside of loops that hand it on alone.
        free_invariants(module)
        join_devices(module)
        refuse_per_device(module)
        but_meshes = set_aside(module) or bool(over_devices(module))
        ops = mlir.all_operations(module)
    names = {op.name for op in ops}
    drop_placement(module, ops, but_meshes=but_meshes)
    for stage, known in LAST.items():
        if not known.isdisjoint(names):
            stage(module)


def free_invariants(module: Module) -> None:
    """Use what a loop carries unchanged from outside, so that it is no part of its state.

    That is also a zero to which it adds zeros, as to the gradient of a parameter without use. Inner
    loops come first, so that what they leave as it is counts as unchanged around them.
    """
    loops = [op for op in mlir.all_operations(module) if op.name == "stablehlo.while"]
    for loop in reversed(loops):
        condition, body = mlir.blocks(loop)
        returned = mlir.returned(body)
        for i, value in enumerate(returned):
            if _stays(loop.operands[i], body.arguments[i], value):
                for carried in (condition.arguments[i], body.arguments[i], loop.results[i]):
                    carried.replace_all_uses_with(loop.operands[i])


def _stays(initial: Value, argument: Value, value: Value) -> bool:
    """Whether a state is what it was, given what it begins as and what a step makes of it."""
    op = mlir.made_by(value, "stablehlo.add")
    if op is None or argument not in op.operands:
        return value == argument
    return is_splat(initial, 0) and any(is_splat(v, 0) for v in op.operands)


def free_constants(module: Module) -> None:
    """Move constants of loops and branches to main's front, so that no body has them."""
    first = mlir.operations(mlir.body(mlir.main_function(module)))[0]
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.constant" and cast(Any, op.parent).name in mlir.CONTROL_FLOW:
            op.move_before(first)


# What is done, and the ops without which there is nothing to do.
FIRST: dict[Callable[[Module], None], frozenset[str]] = {
    hold_constants: frozenset([COMPOSITE]),
    hold_functions: frozenset([COMPOSITE, CUSTOM_CALL]),
    sum_windows: frozenset([COMPOSITE, SCAN]),
}
LAST: dict[Callable[[Module], None], frozenset[str]] = {
    refuse_effects: frozenset([CUSTOM_CALL, *TRANSFERS]),
    free_invariants: mlir.CONTROL_FLOW,
    free_constants: mlir.CONTROL_FLOW,
}
