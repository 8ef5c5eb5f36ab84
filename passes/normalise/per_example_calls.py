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
from hlo_surgery.passes.ir.inlining import COMPOSITE, flatten, move_body
from hlo_surgery.passes.ir.mlir import Module, Operation, ir
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
    functions, bodies = functions_of(module), dict[str, str]()
    for op in mlir.all_operations(module):
        if op.name == CUSTOM_CALL:
            for name in {DECLARED, BODY}.intersection(mlir.attribute_names(op)):
                del op.attributes[name]
        elif op.name == COMPOSITE and mlir.text_attribute(op, "name") == NAME:
            name = str(cast(Any, op.attributes["decomposition"]).value)
            if name not in bodies:
                bodies[name] = mlir.to_text(flat_function(functions, name))
            _hold(op, bodies[name])


def release_bodies(module: Module) -> None:
    """Put what the functions compute in place of the calls."""
    for op in mlir.all_operations(module):
        if op.name == CUSTOM_CALL and BODY in op.attributes:
            held = mlir.parse(mlir.text_attribute(op, BODY))
            mlir.replace(op, move_body(mlir.main_function(held), mlir.operands(op), op))


def flat_function(functions: Functions, name: str) -> Module:
    """A module of its own for a function other than main and all that it calls, flat."""
    with mlir.context(), ir.Location.unknown():
        made = ir.Module.create()
        for each, function in functions.items():
            if each == "main":
                continue
            copied = cast(Any, function.operation.clone())
            copied.attributes["sym_name"] = ir.StringAttr.get("main" if each == name else each)
            made.body.append(copied)
    drop_placement(made)
    flatten(made)
    refuse_per_device(made)
    refuse_effects(made)
    return made


def _hold(op: Operation, body: str) -> None:
    said = cast(Any, op.attributes["composite_attributes"])
    known = [[None if a.value == NONE else a.value for a in row] for row in said[AXES]]
    texts = {"call_target_name": NAME, "kernel_name": said[FUNCTION].value, BODY: body}
    held: dict[str, ir.Attribute] = {
        name: ir.StringAttr.get(text, mlir.context()) for name, text in texts.items()
    }
    made = mlir.rename(op, CUSTOM_CALL, held)
    declare(made, [_with_constants(row, made) for row in known])


def _with_constants(axes: list[int | None], op: Operation) -> Axes:
    """The axes of all operands: JAX puts arrays that the function closes over in front."""
    closed_over = len(op.operands) + len(op.results) - len(axes)
    return (*([None] * closed_over), *axes)
