"""Structure: what a module must have beside valid ops, so that all after its loading can hold it.

MLIR's verifier accepts functions that call themselves, bodies that are missing, and names that are
no text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, func

# XLA and MLIR recurse over nested regions on a stack of fixed size.
DEEPEST = 200
# MLIR writes each byte of a string that is not ASCII as two digits; `\\` is a backslash.
# What a call holds of a GPU's kernel is code, and no name.
CODE = re.compile(r'\b(?:ir|opaque) = "[^"]*"')
NOT_ASCII = re.compile(r"\\\\|((?:\\[89A-Fa-f][0-9A-Fa-f])+)")

Functions = Mapping[str, func.FuncOp]


def check_text(text: str) -> None:
    """Raises ValueError where a string in a module's text, other than code, is no UTF-8."""
    for found in NOT_ASCII.finditer(CODE.sub("", text)):
        try:
            bytes.fromhex((found[1] or "").replace("\\", "")).decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"the module holds a name that is no UTF-8: {found[0]}; dump it with other names"
            ) from None


def check_structure(code: mlir.Module) -> None:
    """Raises ValueError where main has no body, calls end nowhere or in themselves, or regions nest
    too deep.
    """
    check_text(cast(str, code.operation.get_asm(enable_debug_info=True, large_elements_limit=16)))
    if deepest_region(code.operation) > DEEPEST:
        raise ValueError(
            f"the module's regions are nested more than {DEEPEST} deep, which XLA cannot compile"
        )
    calls_of(code)


def functions_of(code: mlir.Module) -> dict[str, func.FuncOp]:
    """The functions of a module, by name."""
    return {f.name.value: f for f in code.body.operations if isinstance(f, func.FuncOp)}


def calls_of(code: mlir.Module) -> dict[str, int]:
    """How many calls deep each reached function leads, by name, after all it calls, main last.

    Raises ValueError where one calls itself, or has no body of one block.
    """
    functions = functions_of(code)
    main = mlir.main_function(code)
    callees = {main.name.value: _callees(main, functions)}
    depths: dict[str, int] = {}
    entered = {main.name.value: iter(callees[main.name.value])}
    while entered:
        name, remaining = next(reversed(entered.items()))
        callee = next(remaining, None)
        if callee is None:
            depths[name] = 1 + max((depths[c] for c in callees[name]), default=0)
            del entered[name]
        elif callee in entered:
            raise ValueError(
                f"function @{callee} calls itself, by way of @{name}; a StableHLO module has no "
                "recursion"
            )
        elif callee not in depths:
            callees[callee] = _callees(functions[callee], functions)
            entered[callee] = iter(callees[callee])
    return depths


def _callees(function: func.FuncOp, functions: Functions) -> list[str]:
    """The names of the functions that it calls."""
    if len(function.regions[0].blocks) != 1:
        many = len(function.regions[0].blocks) or "no"
        raise ValueError(
            f"function @{function.name.value} has {many} blocks; one is needed, its body"
        )
    calls = [op for op in mlir.nested_operations(function.operation) if op.name == "func.call"]
    names = dict.fromkeys(str(cast(Any, call.attributes["callee"]).value) for call in calls)
    missing = [name for name in names if name not in functions]
    if missing:
        raise ValueError(
            f"function @{function.name.value} calls @{missing[0]}, which the module does not hold"
        )
    return list(names)


def deepest_region(op: Operation) -> int:
    """How many regions lie one in another."""
    depth, level = 0, [op]
    while level := [op for op in _inside(level) if len(op.regions)]:
        depth += 1
    return depth


def _inside(ops: list[Operation]) -> Iterator[Operation]:
    for op in ops:
        for region in op.regions:
            for block in region.blocks:
                yield from mlir.operations(block)
