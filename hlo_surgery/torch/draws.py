"""Draws: random numbers, such as dropout's, which PyTorch draws at every call from its own stream.

So a seed gives the same masks with statistics as without.
"""

from collections.abc import Iterable
from typing import Any

from hlo_surgery.torch.pytorch import Node, torch

# Of these, tensors say of which shape, layout and dtype the numbers are to be, and no more.
BY_SHAPE = (
    "aten.bernoulli.p",
    "aten.exponential.default",
    "aten.normal_functional.default",
    "aten.rand.default",
    "aten.rand_like.default",
    "aten.randint.default",
    "aten.randint.low",
    "aten.randint_like.default",
    "aten.randint_like.low_dtype",
    "aten.randn.default",
    "aten.randn_like.default",
    "aten.randperm.default",
    "aten.uniform.default",
)


def is_draw(node: Any) -> bool:
    """Whether a node of a graph draws random numbers, which rest on nothing that is computed."""
    return node.op == "call_function" and str(node.target) in BY_SHAPE


def drawn(nodes: Iterable[Any]) -> list[Any]:
    """What is drawn for a graph, in order."""
    return [_draw(node) for node in nodes if is_draw(node)]


def _draw(node: Any) -> Any:
    args = [_like(x.meta["val"]) if isinstance(x, Node) else x for x in node.args]
    return node.target(*args, **node.kwargs)


def _like(fake: Any) -> Any:
    """A tensor with the same strides: in that order PyTorch draws."""
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
