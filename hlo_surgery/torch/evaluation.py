"""Evaluation: a graph of aten operators as a JAX function, each at the line that it comes from."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.fx import Node  # pyright: ignore[reportMissingImports]
from torch.fx.node import map_arg  # pyright: ignore[reportMissingImports]

from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.torch.aten import (  # noqa: F401  # pyright: ignore[reportUnusedImport]
    contractions,
    creation,
    elementwise,
    indexing,
    moves,
    reductions,
    windows,
)
from hlo_surgery.torch.aten.operators import TABLE, Made
from hlo_surgery.torch.draws import is_draw
from hlo_surgery.torch.lines import at_lines, lines_of, user_line
from hlo_surgery.torch.tensors import dtype_of

UNKNOWN_HELP = (
    "write it with operators of core aten that hlo_surgery/torch/aten has, or the loss in JAX"
)
IN_PLACE_HELP = "register what changes as a buffer, or work on a clone of it"


def check_operators(nodes: Iterable[Any]) -> None:
    """Raises Refusal for the first operator that has no JAX function, or changes what it is
    given.
    """
    for node in nodes:
        if node.op != "call_function" or node.target is operator.getitem or is_draw(node):
            continue
        if getattr(node.target, "_schema", None) is not None and node.target._schema.is_mutable:
            why = "it changes a tensor in place that the module does not hold as a buffer"
            raise _refusal(node, why, IN_PLACE_HELP)
        if str(node.target) not in TABLE:
            raise _refusal(node, "no JAX function is known for this operator", UNKNOWN_HELP)


def evaluated(nodes: Sequence[Any]) -> Callable[..., list[Any]]:
    """The function of the graph's inputs, and of what is drawn for it in order, as lists."""

    def function(inputs: Sequence[Any], drawn: Sequence[Any]) -> list[Any]:
        given, draws = iter(inputs), iter(drawn)
        values: dict[Any, Any] = {}
        for node in nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                return list(map_arg(node.args[0], values.__getitem__))
            else:
                values[node] = next(draws) if is_draw(node) else _called(node, values)
        raise AssertionError("a graph ends with its output")

    return function


def _called(node: Any, values: dict[Any, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    result = at_lines(lines_of(node), TABLE[str(node.target)], _made(node), *args, **kwargs)
    _check_made(node, result)
    return result


def _made(node: Any) -> Made:
    first = _first(node.meta["val"])
    return Made(tuple(first.shape), dtype_of(first.dtype), _common(node))


def _common(node: Any) -> Any:
    """The dtype to which PyTorch promotes the first two operands."""
    operands = [x.meta["val"] if isinstance(x, Node) else x for x in node.args[:2]]
    kinds = [x for x in operands if isinstance(x, torch.Tensor | bool | int | float | complex)]
    if not any(isinstance(x, torch.Tensor) for x in kinds):
        return None
    return dtype_of(torch.result_type(*kinds) if len(kinds) == 2 else kinds[0].dtype)


def _first(value: Any) -> Any:
    return next(x for x in value if x is not None) if isinstance(value, tuple | list) else value


def _check_made(node: Any, result: Any) -> None:
    """Raises Refusal where what was made is not of the shape and dtype that PyTorch says."""
    said = node.meta["val"]
    pairs = zip(said, result, strict=True) if isinstance(said, tuple | list) else [(said, result)]
    for tensor, made in pairs:
        if tensor is None or made is None:
            continue
        if tuple(tensor.shape) != made.shape or dtype_of(tensor.dtype) != made.dtype:
            found = f"{made.dtype}{list(made.shape)}"
            why = f"JAX makes {found} where PyTorch makes {tensor.dtype}{list(tensor.shape)}"
            raise _refusal(node, why, UNKNOWN_HELP)


def _refusal(node: Any, why: str, help: str) -> Refusal:
    where, within = user_line(lines_of(node))
    return Refusal(Reason(why, str(node.target), where, help, within))
