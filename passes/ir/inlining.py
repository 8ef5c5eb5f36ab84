"""Inlining: given a module with calls, one `main` with the ops of every function it reaches."""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, func
from hlo_surgery.passes.ir.source_lines import inlined_location
from hlo_surgery.passes.ir.structure import calls_of, functions_of


def inline_calls(module: Module) -> None:
    """Inline every `func.call` into `main`, callees first, and drop the other functions.

    MLIR's own `inline` pass does nothing in jaxlib, where the func dialect's inliner interface is
    not registered.
    """
    functions = functions_of(module)
    main = mlir.main_function(module)
    for name in calls_of(module):
        for call in [
            op for op in mlir.nested_operations(functions[name].operation) if op.name == "func.call"
        ]:
            inline(functions[cast(Any, call.attributes["callee"]).value], call)
    for name, function in functions.items():
        if name != main.name.value:
            function.operation.erase()


def inline(function: func.FuncOp, call: Operation) -> None:
    """Replace one call by a copy of the function's ops."""
    copied = cast(Any, function.operation.clone())
    for op in mlir.nested_operations(copied.operation):
        cast(Any, op).location = inlined_location(op, call)
    values = move_body(copied, mlir.operands(call), call)
    for result, value in zip(mlir.results(call), values, strict=True):
        result.replace_all_uses_with(value)
    call.erase()


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
