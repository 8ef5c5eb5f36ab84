"""Inlining: given a module with calls, one `main` with the ops of every function it reaches.

Placement: given a module that says where values lie, the same values with no word of it.

    %y = custom_call @Sharding(%x) {mhlo.sharding = ...}    =>    %x
    func @main(%x {sdy.sharding = ...})                           func @main(%x)

A sharding, GSPMD's or Shardy's, a layout and a memory kind change no value, and none of them
outlives the mesh or the caller that it was written for. XLA partitions the module anew for the
arrays with which it is called.
"""

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import inlined_location
from hlo_surgery.passes.ir.mlir import Module, Operation, Operations, Value, Values, func, ir, sdy

Functions = Mapping[str, func.FuncOp]
# By the name of what they call.
Calls = dict[str, list[Operation]]


def functions_of(code: mlir.Module) -> dict[str, func.FuncOp]:
    """The functions of a module, by name."""
    return {f.name.value: f for f in code.body.operations if isinstance(f, func.FuncOp)}


def called(code: mlir.Module) -> dict[str, Calls]:
    """The calls in each reached function, by its name and by theirs, after all it calls, main last.

    Raises ValueError where one calls itself, or has no body of one block.
    """
    functions, found = functions_of(code), dict[str, Calls]()

    def calls(name: str) -> Calls:
        found[name] = _callees(functions[name], functions)
        return found[name]

    mlir.closure([mlir.main_function(code).name.value], calls)
    try:
        return {name: found[name] for name in TopologicalSorter(found).static_order()}
    except CycleError as cycle:
        callee, name, *_ = cycle.args[1]
        raise ValueError(
            f"function @{callee} calls itself, by way of @{name}; a StableHLO module has no "
            "recursion"
        ) from None


def _callees(function: func.FuncOp, functions: Functions) -> Calls:
    """A function's calls, by the names of those that it calls."""
    if len(function.regions[0].blocks) != 1:
        many = len(function.regions[0].blocks) or "no"
        raise ValueError(
            f"function @{function.name.value} has {many} blocks; one is needed, its body"
        )
    found = Calls()
    for op in mlir.nested_operations(function.operation):
        if op.name == "func.call":
            found.setdefault(mlir.text_attribute(op, "callee"), []).append(op)
    missing = [name for name in found if name not in functions]
    if missing:
        raise ValueError(
            f"function @{function.name.value} calls @{missing[0]}, which the module does not hold"
        )
    return found


COMPOSITE = "stablehlo.composite"
# MLIR's passes: of composites, of CHLO, and of ops of older dumps, which now go by other names.
LEGALISING = (
    "stablehlo-legalize-composite-to-call",
    "chlo-legalize-to-stablehlo",
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}",
)


def flatten(module: Module) -> None:
    """Put StableHLO's own ops of today in place of composites, CHLO and ops of older dumps, and
    inline all calls.
    """
    mlir.run_passes(module, *(f"func.func({each})" for each in LEGALISING))
    inline_calls(module)


def inline_calls(module: Module) -> None:
    """Inline every `func.call` into `main`, callees first, and drop the other functions.

    MLIR's own `inline` pass does nothing in jaxlib, where the func dialect's inliner interface is
    not registered.
    """
    functions = functions_of(module)
    main = mlir.main_function(module).name.value
    for calls in called(module).values():
        for name, ops in calls.items():
            for op in ops:
                _inline(functions[name], op)
    for name, function in functions.items():
        if name != main:
            function.operation.erase()


def _inline(function: func.FuncOp, call: Operation) -> None:
    """Replace one call by a copy of the function's ops."""
    copied = cast(Any, function.operation.clone())
    for op in mlir.nested_operations(copied.operation):
        cast(Any, op).location = inlined_location(op, call)
    mlir.replace(call, move_body(copied, mlir.operands(call), call))


def move_body(function: Any, arguments: Values, before: Operation) -> list[Value]:
    """Move a detached function's ops before an op, its arguments bound; the returned values."""
    block = mlir.body(function)
    for parameter, argument in zip(block.arguments, arguments, strict=True):
        parameter.replace_all_uses_with(argument)
    *ops, last = mlir.operations(block)
    for op in ops:
        op.move_before(before)
    values = mlir.operands(last)
    function.operation.erase()
    return values


CALLS = frozenset(
    ["Sharding", "annotate_device_placement", "LayoutConstraint", "xla.sdy.FuncResultSharding"]
)
OPS = frozenset(["sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.reshard"])
MESH, CUSTOM_CALL = "sdy.mesh", "stablehlo.custom_call"
DECLARATIONS = frozenset([MESH, "sdy.sharding_group"])
ATTRIBUTES = frozenset(
    [
        "sdy.sharding",
        "sdy.sharding_rule",
        "mhlo.sharding",
        "mhlo.layout_mode",
        "mhlo.memory_kind",
    ]
)
DEVICE_COUNTS = ("mhlo.num_partitions", "mhlo.num_replicas")


def drop_placement(module: Module, ops: Operations, *, but_meshes: bool = False) -> None:
    """Drop the annotations in place; the module is then one for a single device. `ops`: all of it.

    But what says which meshes there are may stay, for constraints to name them.
    """
    for op in ops:
        name = op.name
        if (name in OPS or name == CUSTOM_CALL) and is_annotation(op):
            mlir.replace(op, mlir.operands(op))
        elif name in DECLARATIONS and not (but_meshes and name == MESH):
            op.erase()
        else:
            _drop_attributes(op, name)
    mlir.drop_attributes(module.operation, () if but_meshes else DEVICE_COUNTS)


def meshes(module: Module) -> list[tuple[str, dict[str, int], list[int]]]:
    """The meshes that a module names: each one's name, the sizes of its axes, and its devices where
    they are in another order than their own.
    """
    ops = [op for op in mlir.operations(module.body) if op.name == MESH]
    named = {mlir.text_attribute(op, "sym_name"): sdy.MeshAttr(op.attributes["mesh"]) for op in ops}
    return [
        (name, {a.name: a.size for a in map(sdy.MeshAxisAttr, mesh.axes)}, list(mesh.device_ids))
        for name, mesh in named.items()
    ]


def is_annotation(op: Operation) -> bool:
    """Whether the op returns its operand, and says no more than where it lies."""
    named = op.name == CUSTOM_CALL and mlir.text_attribute(op, "call_target_name") in CALLS
    alike = [v.type for v in op.operands] == [v.type for v in op.results]
    return (named or op.name in OPS) and alike


def placed(value: Value) -> Value:
    """The value itself, before ops that say where it lies."""
    while (op := mlir.defining_operation(value)) is not None and is_annotation(op):
        value = op.operands[0]
    return value


def _drop_attributes(op: Operation, kind: str) -> None:
    mlir.drop_attributes(op, ATTRIBUTES)
    if kind == "func.func":
        for ports in ("arg_attrs", "res_attrs"):
            if kept := list(map(_kept, mlir.entries(op, ports))):
                op.attributes[ports] = ir.ArrayAttr.get(kept, mlir.context())


def _kept(attributes: Any) -> ir.Attribute:
    """The attributes of one argument or result but for those that place it."""
    entries = ((entry.name, entry.attr) for entry in ir.DictAttr(attributes))
    with mlir.context():
        return ir.DictAttr.get({name: value for name, value in entries if name not in ATTRIBUTES})


# Of a sharding constraint that is set aside, by the number of the value: of the results, 0, or the
# arguments of the op's regions, from 1 on.
MARK = re.compile(r"placed_(\d+)_(\d+)")


def marks(op: Operation) -> list[str]:
    """The names of the attributes that are marks."""
    return [name for name in mlir.attribute_names(op) if MARK.fullmatch(name)]


def unmarked(op: Operation) -> dict[str, object]:
    """The op's attributes but for marks: what it computes. Of complex constants it is their text,
    since the bindings cannot hold them.
    """
    if op.name == "stablehlo.constant" and mlir.is_complex(op.result):
        number = mlir.attribute_names(op).index("value")
        return {"value": str(cast(Any, op.attributes)[number])}
    return {k: v for k, v in mlir.attributes(op).items() if not MARK.fullmatch(k)}
