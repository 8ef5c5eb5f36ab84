"""Evaluation: a graph of aten operators as a JAX function, each at the line that it comes from."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from hlo_surgery.torch.aten import TABLE
from hlo_surgery.torch.aten.operators import Made
from hlo_surgery.torch.draws import is_draw
from hlo_surgery.torch.lines import at_lines, lines_of, refusal_at
from hlo_surgery.torch.pytorch import map_arg
from hlo_surgery.torch.refused import UNKNOWN_HELP
from hlo_surgery.torch.tensors import dtype_of

# What JAX raises for operands of PyTorch's that a function of it has no meaning for.
TAKES_NOT = (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError)


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
    lines, name = lines_of(node), str(node.target)
    try:
        result = at_lines(lines, TABLE[name], _made(node), *args, **kwargs)
    except TAKES_NOT as problem:
        why = f"JAX does not take these operands: {problem}"
        raise refusal_at(lines, name, why, UNKNOWN_HELP) from problem
    _check_made(node, result)
    return result


def _made(node: Any) -> Made:
    first = next(x for x in _each(node.meta["val"]) if x is not None)
    return Made(tuple(first.shape), dtype_of(first.dtype))


def _each(value: Any) -> Sequence[Any]:
    """Of an operator's results, which may be one."""
    return value if isinstance(value, tuple | list) else [value]


def _check_made(node: Any, result: Any) -> None:
    """Raises Refusal where what was made is not of the shape and dtype that PyTorch says."""
    said = node.meta["val"]
    made_of_each = result if isinstance(said, tuple | list) else [result]
    for tensor, made in zip(_each(said), made_of_each, strict=True):
        if tensor is None or made is None:
            continue
        if tuple(tensor.shape) != made.shape or dtype_of(tensor.dtype) != made.dtype:
            found = f"{made.dtype}{list(made.shape)}"
            why = f"JAX makes {found} where PyTorch makes {tensor.dtype}{list(tensor.shape)}"
            raise refusal_at(lines_of(node), str(node.target), why, UNKNOWN_HELP)
