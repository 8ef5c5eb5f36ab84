"""Called functions: what custom calls name of their module, as `ApproxTopK` its comparator.

    custom_call @ApproxTopK(%x, ..) {called_computations = [@larger]}
        =>   custom_call @ApproxTopK(%x, ..) {hlo_surgery.called = ["func @main ..."]}

Inlining leaves nothing but main, and an op may be copied into a module of its own: a call carries
its functions as text until all is done.
"""

from collections.abc import Mapping
from typing import Any, cast

from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, ir
from hlo_surgery.passes.ir.structure import functions_of
from hlo_surgery.passes.normalise.per_example_calls import flat_function

CALLED, HELD = "called_computations", "hlo_surgery.called"
NAME = "hlo_surgery_called"


def hold_called(module: Module) -> None:
    """Have each custom call carry the functions that it names."""
    functions = functions_of(module)
    for op in mlir.all_operations(module):
        if op.name != CUSTOM_CALL:
            continue
        # What the module brings along of it is no function.
        if HELD in op.attributes:
            del op.attributes[HELD]
        if CALLED in op.attributes:
            names = [str(name.value) for name in cast(Any, op.attributes[CALLED])]
            texts = [mlir.to_text(flat_function(functions, name)) for name in names]
            with mlir.context():
                op.attributes[HELD] = ir.ArrayAttr.get([ir.StringAttr.get(text) for text in texts])
            del op.attributes[CALLED]


def release_called(module: Module) -> None:
    """Have the functions beside main again, one for all calls that carry the same."""
    made: dict[str, str] = {}
    for op in mlir.all_operations(module):
        if op.name == CUSTOM_CALL and HELD in op.attributes:
            texts = [str(text.value) for text in cast(Any, op.attributes[HELD])]
            names = [made.setdefault(text, f"{NAME}_{len(made)}") for text in texts]
            with mlir.context():
                symbols = [ir.FlatSymbolRefAttr.get(name) for name in names]
                op.attributes[CALLED] = ir.ArrayAttr.get(symbols)
            del op.attributes[HELD]
    _add(module, made)


def _add(module: Module, made: Mapping[str, str]) -> None:
    """Functions by text, under these names."""
    for text, name in made.items():
        held = mlir.parse(text)
        function = cast(Any, mlir.main_function(held).operation.clone())
        with mlir.context():
            function.attributes["sym_name"] = ir.StringAttr.get(name)
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        module.body.append(function)
