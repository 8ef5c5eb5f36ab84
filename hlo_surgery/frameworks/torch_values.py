"""PyTorch's modules and tensors: functions of JAX take none."""

from collections.abc import Iterable
from typing import Any


def refuse_torch(leaves: Iterable[Any]) -> None:
    """Raises TypeError where a leaf of the arguments is PyTorch's."""
    for value in leaves:
        kind = type(value)
        if any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} is of PyTorch, and this takes functions "
                "and arrays of JAX: use hlo_surgery.torch.grad(module, loss, ...)"
            )
