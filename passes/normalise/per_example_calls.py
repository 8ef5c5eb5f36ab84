"""Per-example calls: what `hs.per_example_call` was put around, as one op for the analysis.

    composite "hlo_surgery.per_example_call" %x {example_axes = [[0, 0]], decomposition = @f}
        =>   custom_call @hlo_surgery.per_example_call(%x) {example_axes, body = "... @f ..."}

Its function is held as text in the call, which is then like any other that was declared; when all
is done, its ops stand in place of it.
"""

from typing import Any, cast

from hlo_surgery.passes.dataflow.declared_calls import ATTRIBUTE as DECLARED
from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL, NONE, declare
from hlo_surgery.passes.dataflow.sharding_rules import Axes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.inlining import inline_calls, move_body
from hlo_surgery.passes.ir.mlir import Module, Operation, func, ir
from hlo_surgery.passes.ir.placement import drop_placement
from hlo_surgery.passes.ir.structure import Functions, functions_of
from hlo_surgery.passes.normalise.out_of_scope import refuse_effects, refuse_per_device

NAME = "hlo_surgery.per_example_call"
# What `hs.per_example_call` says of the composite: the axes, and the name of its function.
AXES, FUNCTION = "example_axes", "function"
BODY = "hlo_surgery.body"


def hold_bodies(module: Module) -> None:
    """Put a declared custom call in place of every such composite, and drop what calls that the
    module brings along say of themselves. Raises ValueError where the axes do not fit, Refusal
    where a function does more than compute.
    """
    for op in mlir.all_operations(module):
        for name in (DECLARED, BODY):
            if name in op.attributes:
                del op.attributes[name]
    functions = functions_of(module)
    ops = mlir.all_operations(module)
    composites = [op for op in ops if _is_per_example(op)]
    names = dict.fromkeys(map(_decomposition, composites))
    bodies = {name: mlir.to_text(flat_function(functions, name)) for name in names}
    for op in composites:
        _hold(op, bodies[_decomposition(op)])


def release_bodies(module: Module) -> None:
    """Put what the functions compute in place of the calls."""
    for op in mlir.all_operations(module):
        if op.name == CUSTOM_CALL and BODY in op.attributes:
            held = mlir.parse(mlir.text_attribute(op, BODY))
            values = move_body(mlir.main_function(held), mlir.operands(op), op)
            for result, value in zip(mlir.results(op), values, strict=True):
                result.replace_all_uses_with(value)
            op.erase()


def _is_per_example(op: Operation) -> bool:
    return op.name == "stablehlo.composite" and mlir.text_attribute(op, "name") == NAME


def _decomposition(op: Operation) -> str:
    return str(cast(Any, op.attributes["decomposition"]).value)


def flat_function(functions: Functions, name: str) -> Module:
    """A module of its own for a function and all that it calls, flat."""
    with mlir.context(), ir.Location.unknown():
        made = ir.Module.create()
    for called in closure([name], lambda caller: _called(functions[caller])):
        copied = cast(Any, functions[called].operation.clone())
        if called == name:
            with mlir.context():
                copied.attributes["sym_name"] = ir.StringAttr.get("main")
        made.body.append(copied)
    drop_placement(made)
    mlir.run_passes(made, "func.func(stablehlo-legalize-composite-to-call)")
    mlir.run_passes(made, "func.func(chlo-legalize-to-stablehlo)")
    inline_calls(made)
    refuse_per_device(made)
    refuse_effects(made)
    return made


def _called(function: func.FuncOp) -> list[str]:
    """The names of the functions that a function calls, or has composites of."""
    attributes = {"func.call": "callee", "stablehlo.composite": "decomposition"}
    ops = [op for op in mlir.nested_operations(function.operation) if op.name in attributes]
    return [str(cast(Any, op.attributes[attributes[op.name]]).value) for op in ops]


def _hold(op: Operation, body: str) -> None:
    said = cast(Any, op.attributes["composite_attributes"])
    known = [[None if a.value == NONE else a.value for a in row] for row in said[AXES]]
    with mlir.context(), op.location, ir.InsertionPoint(op):
        texts = {"call_target_name": NAME, "kernel_name": said[FUNCTION].value, BODY: body}
        attributes: dict[str, ir.Attribute] = {
            name: ir.StringAttr.get(text) for name, text in texts.items()
        }
        kinds = [r.type for r in op.results]
        made = ir.Operation.create(CUSTOM_CALL, kinds, list(op.operands), attributes)
    declare(made, [_with_constants(row, made) for row in known])
    for old, new in zip(mlir.results(op), mlir.results(made), strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _with_constants(axes: list[int | None], op: Operation) -> Axes:
    """The axes of all operands: JAX puts arrays that the function closes over in front."""
    closed_over = len(op.operands) + len(op.results) - len(axes)
    return (*([None] * closed_over), *axes)
