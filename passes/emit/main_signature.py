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
        made = cast(Value, block.add_argument(kind, ir.Location.unknown()))
        if "arg_attrs" in function.attributes:
            known = _attributes(function, "arg_attrs")
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([*known, ir.DictAttr.get({})])
        _retype(function)
    return made


def set_results(
    function: func.FuncOp, values: Sequence[Value], attributes: Sequence[dict[str, str]]
) -> None:
    """Make the function return these values, the last of them with new string attributes."""
    block = mlir.body(function)
    old = mlir.return_operation(block)
    with mlir.context(), old.location:
        known = _attributes(function, "res_attrs")
        missing = len(values) - len(attributes) - len(known)
        known += [ir.DictAttr.get({})] * missing
        for named in attributes:
            strings: dict[str, ir.Attribute] = {k: ir.StringAttr.get(v) for k, v in named.items()}
            known.append(ir.DictAttr.get(strings))
        function.attributes["res_attrs"] = ir.ArrayAttr.get(known)
        with ir.InsertionPoint(old):
            func.ReturnOp(list(values))
        old.erase()
        _retype(function)


def _attributes(function: func.FuncOp, name: str) -> list[Any]:
    return list(cast(Any, function).attributes[name]) if name in function.attributes else []


def _retype(function: func.FuncOp) -> None:
    """Give a function the type of what its block takes and returns."""
    block = mlir.body(function)
    outputs = [v.type for v in mlir.return_operation(block).operands]
    kind = ir.FunctionType.get([a.type for a in block.arguments], outputs)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
