"""Main's signature: given a function, further arguments, and what else it returns."""

from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value, func, ir

# The attribute of a result that a rewriting has added: the statistic's label. It outlives names
# and locations, and says of a file what was done to it.
STATISTIC = "hlo_surgery.statistic"


def add_argument(function: func.FuncOp, kind: ir.Type) -> Value:
    """A further argument of a function, the last."""
    block = cast(Any, mlir.body(function))
    with mlir.context(), ir.Location.unknown():
        old = cast(Any, function.attributes["function_type"]).value
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([*old.inputs, kind], old.results)
        )
        if "arg_attrs" in function.attributes:
            known = list(cast(Any, function).attributes["arg_attrs"])
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([*known, ir.DictAttr.get({})])
        return cast(Value, block.add_argument(kind, ir.Location.unknown()))


def set_results(
    function: func.FuncOp, values: Sequence[Value], attributes: Sequence[dict[str, str]]
) -> None:
    """Make the function return these values, the last of them with new string attributes."""
    block = mlir.body(function)
    with mlir.context(), ir.Location.unknown():
        old = mlir.return_operation(block)
        location = old.location
        known = (
            list(cast(Any, function).attributes["res_attrs"])
            if "res_attrs" in function.attributes
            else []
        )
        missing = len(values) - len(attributes) - len(known)
        known += [ir.DictAttr.get({})] * missing
        added = [
            ir.DictAttr.get({k: ir.StringAttr.get(v) for k, v in a.items()}) for a in attributes
        ]
        inputs = [a.type for a in block.arguments]
        kind = ir.FunctionType.get(inputs, [v.type for v in values])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        function.attributes["res_attrs"] = ir.ArrayAttr.get([*known, *added])
        old.erase()
        with ir.InsertionPoint(block):
            func.ReturnOp(list(values), loc=location)
