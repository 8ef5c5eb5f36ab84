"""Refused: what a graph would hide, as it is a program for one kind of arguments, without effects.

What a tensor holds decides on no branch and on no shape, nothing is changed but what is handed
back, and no example's gradient rests on the others' statistics.
"""

import inspect
from collections.abc import Iterable
from typing import Any

from hlo_surgery.torch.aten import TABLE
from hlo_surgery.torch.draws import is_draw
from hlo_surgery.torch.lines import NotedLines, current_lines, lines_of, refusal_at
from hlo_surgery.torch.pytorch import Node, aten, torch

DECIDED = "what a tensor holds decides here how the program goes on, or what shape a tensor has"
DECIDED_HELP = "choose with torch.where, or weigh by 0 and 1; pass what is known before as a number"
NORMALISED = "BatchNorm in training mode normalises each example by all of them"
NORMALISED_HELP = "call module.eval() on it, which takes the running averages; or use GroupNorm"
UNKNOWN = "no JAX function is known for this operator"
UNKNOWN_HELP = "write it with others, of those that torch.export calls core aten; or in JAX"
IN_PLACE = "it changes a tensor in place that is no buffer of the module"
IN_PLACE_HELP = "register it as a buffer, or work on a clone of it"
FLAGS = (torch.bool, torch.uint8)
# What shows that an operator of a batch norm's was called by a layer that is one.
BATCH_NORM = "torch/nn/modules/batchnorm.py"


class Refusing(NotedLines):
    """While it is entered, lines are noted, and an operator that no graph can hold raises
    Refusal.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As PyTorch calls it."""
        self.note(inspect.currentframe())
        if _decides(func, args):
            raise refusal_at(current_lines(), str(func), DECIDED, DECIDED_HELP)
        if _normalises(func, args):
            raise refusal_at(current_lines(), str(func), NORMALISED, NORMALISED_HELP)
        return func(*args, **(kwargs or {}))


def check_unchanged(nodes: Iterable[Any]) -> None:
    """Raises Refusal where a graph with effects changes what it is given or closes over."""
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        changes = schema is not None and schema.is_mutable
        if changes and _viewed(node.args[0]).op in ("placeholder", "get_attr"):
            raise refusal_at(lines_of(node), str(node.target), IN_PLACE, IN_PLACE_HELP)


def check_known(nodes: Iterable[Any]) -> None:
    """Raises Refusal for the first operator of a graph without effects that has no JAX function."""
    for node in nodes:
        called = node.op == "call_function" and hasattr(node.target, "_schema")
        if called and not is_draw(node) and str(node.target) not in TABLE:
            raise refusal_at(lines_of(node), str(node.target), UNKNOWN, UNKNOWN_HELP)


def _decides(func: Any, args: Any) -> bool:
    """Whether an operator makes a number or a shape of what a tensor holds."""
    tags = getattr(func, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        return True
    if func.overloadpacket is aten.index:
        # Of numbers there are as many as before, of flags as many as are set.
        return any(index is not None and index.dtype in FLAGS for index in args[1])
    return torch.Tag.dynamic_output_shape in tags


def _normalises(func: Any, args: Any) -> bool:
    """Whether a layer's batch norm takes the batch's own averages."""
    if "batch_norm" not in str(func) or "backward" in str(func):
        return False
    lines = current_lines()
    named = [argument.name for argument in func._schema.arguments]
    training = dict(zip(named, args, strict=False)).get("training", "update" in str(func))
    return bool(training) and any(line.path.endswith(BATCH_NORM) for line in lines)


def _viewed(node: Any) -> Any:
    """What a node is a view of."""
    while isinstance(node, Node) and node.op == "call_function" and _is_view(node.target):
        node = node.args[0]
    return node


def _is_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and any(made.alias_info is not None for made in schema.returns)
