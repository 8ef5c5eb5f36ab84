"""Inlining: given a module with calls, one `main` with the ops of every function it reaches."""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, func
from hlo_surgery.passes.ir.source_lines import inlined_location
from hlo_surgery.passes.ir.structure import calls_of, functions_of

COMPOSITE = "stablehlo.composite"
# Ops of older dumps, which newer ones have other words for.
OLD = ("broadcast", "create_token", "cross-replica-sum", "dot", "unary_einsum")
# MLIR's passes, and the ops that they are run for.
LEGALISED = {
    "stablehlo-legalize-composite-to-call": frozenset([COMPOSITE]),
    "chlo-legalize-to-stablehlo": frozenset(["chlo"]),
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}": frozenset(
        f"stablehlo.{name}" for name in OLD
    ),
}


def flatten(module: Module) -> None:
    """Put StableHLO's own ops of today in place of composites, CHLO and ops of older dumps, and
    inline all calls.
    """
    names = mlir.op_names(module)
    names |= {name.split(".")[0] for name in names}
    passes = [each for each, ops in LEGALISED.items() if not ops.isdisjoint(names)]
    mlir.run_passes(module, *(f"func.func({each})" for each in passes))
    inline_calls(module)


def inline_calls(module: Module) -> None:
    """Inline every `func.call` into `main`, callees first, and drop the other functions.

    MLIR's own `inline` pass does nothing in jaxlib, where the func dialect's inliner interface is
    not registered.
    """
    functions = functions_of(module)
    main = mlir.main_function(module).name.value
    for name in calls_of(module):
        for op in mlir.nested_operations(functions[name].operation):
            if op.name == "func.call":
                _inline(functions[cast(Any, op.attributes["callee"]).value], op)
    for name, function in functions.items():
        if name != main:
            function.operation.erase()


def _inline(function: func.FuncOp, call: Operation) -> None:
    """Replace one call by a copy of the function's ops."""
    copied = cast(Any, function.operation.clone())
    for op in mlir.nested_operations(copied.operation):
        cast(Any, op).location = inlined_location(op, call)
    mlir.replace(call, move_body(copied, mlir.operands(call), call))


def move_body(function: Any, arguments: list[Value], before: Operation) -> list[Value]:
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
