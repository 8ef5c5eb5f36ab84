"""Normalise: given a module as any frontend dumps it, one flat `main` of StableHLO ops.

CHLO and composites are legalised, every call is inlined. Dead ops stay: they may show what belongs to which example.

    func @main(%x) { %y = call @f(%x) ; return %y }        func @main(%x) { %y = tanh %x ; return %y }
    func private @f(%x) { return tanh(%x) }          =>
"""

from typing import Any, cast

from hlo_surgery import mlir
from hlo_surgery.mlir import Module, Operation, Value, func
from hlo_surgery.passes.out_of_scope import refuse_effects, refuse_per_device
from hlo_surgery.passes.placement import drop_placement
from hlo_surgery.passes.source_lines import inlined_location
from hlo_surgery.passes.static_shapes import make_shapes_static


def normalize(module: Module) -> None:
    """Flatten the module in place. Raises Refusal where it does more than compute on static arrays."""
    refuse_per_device(module)
    drop_placement(module)
    mlir.run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")
    mlir.run_passes(module, "func.func(chlo-legalize-to-stablehlo)")
    inline_calls(module)
    make_shapes_static(module)
    refuse_effects(module)
    free_invariants(module)
    free_constants(module)


def free_invariants(module: Module) -> None:
    """Use what a loop carries unchanged from outside the loop, so that it is no part of the loop's state."""
    for loop in [op for op in mlir.nested_operations(cast(Any, module.operation)) if op.name == "stablehlo.while"]:
        condition, body = (region.blocks[0] for region in loop.regions)
        returned = mlir.operands(mlir.return_operation(body))
        for i, value in enumerate(returned):
            if value == body.arguments[i]:
                for carried in (condition.arguments[i], body.arguments[i], loop.results[i]):
                    carried.replace_all_uses_with(loop.operands[i])


def free_constants(module: Module) -> None:
    """Move the constants of loops and branches to the front of main, so that they are no part of the body either."""
    first = mlir.operations(mlir.body(mlir.main_function(module)))[0]
    for op in list(mlir.nested_operations(cast(Any, module.operation))):
        if op.name == "stablehlo.constant" and cast(Any, op.parent).name in mlir.CONTROL_FLOW:
            op.move_before(first)


def inline_calls(module: Module) -> None:
    """Inline every `func.call` into `main`, callees first, and drop the other functions.

    MLIR's own `inline` pass does nothing in jaxlib, where the func dialect's inliner interface is not registered.
    """
    functions = {f.name.value: f for f in module.body.operations if isinstance(f, func.FuncOp)}
    main = mlir.main_function(module)
    flattened: set[str] = set()
    _flatten(main, functions, flattened)
    for name, function in functions.items():
        if name != main.name.value:
            function.operation.erase()


def _flatten(function: func.FuncOp, functions: dict[str, func.FuncOp], flattened: set[str]) -> None:
    calls = [op for op in mlir.nested_operations(function.operation) if op.name == "func.call"]
    for call in calls:
        callee = cast(Any, call.attributes["callee"]).value
        if callee not in flattened:
            _flatten(functions[callee], functions, flattened)
        inline(functions[callee], call)
    flattened.add(function.name.value)


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
    """Move the ops of a detached function before an op, its arguments bound; the values that it returns."""
    block = mlir.body(function)
    for parameter, argument in zip(block.arguments, arguments, strict=True):
        parameter.replace_all_uses_with(argument)
    *ops, last = mlir.operations(block)
    for op in ops:
        op.move_before(before)
    values = mlir.operands(last)
    function.operation.erase()
    return values
