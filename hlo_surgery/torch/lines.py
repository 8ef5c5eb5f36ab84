"""Lines: which line of the user's made each operator of a traced graph, forward and backward."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch  # pyright: ignore[reportMissingImports]
from torch.fx import traceback  # pyright: ignore[reportMissingImports]
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    TorchDispatchMode,
)

from hlo_surgery.passes.ir.errors import Reason, Refusal

HERE = Path(__file__).resolve().parent
TORCH = Path(torch.__file__).resolve().parent
LAYERS = TORCH / "nn" / "modules"
INSTALLED = ("site-packages", "dist-packages")


class Line(NamedTuple):
    """A line of a file."""

    path: str
    number: int


class NotedLines(TorchDispatchMode):
    """While it is entered, fx notes at each operator the layer's line and the user's own.

    A gradient's operators have the lines of what they are the gradient of: autograd numbers its
    nodes as the forward pass makes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._forward: dict[int, list[Line]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As PyTorch calls it."""
        self._note()
        return func(*args, **(kwargs or {}))

    def _note(self) -> None:
        found = _lines_above(sys._getframe(2))
        node = torch._C._current_autograd_node()
        if node is None:
            self._forward.setdefault(torch.autograd._get_sequence_nr(), found)
        elif not found:
            found = self._forward.get(node._sequence_nr() + 1, [])
        traceback.set_stack_trace([f"{line.path}:{line.number}\n" for line in found])


def lines_of(node: Any) -> list[Line]:
    """What was noted at a node of a graph, innermost first."""
    return _read(node.meta.get("stack_trace") or "")


def current_lines() -> list[Line]:
    """What was noted last."""
    return _read(traceback.get_current_meta().get("stack_trace") or "")


def _read(text: str) -> list[Line]:
    noted = text.splitlines()
    pairs = (line.rpartition(":") for line in noted)
    return [Line(path, int(number)) for path, _, number in pairs]


def refusal_at(lines: list[Line], op: str, why: str, help: str) -> Refusal:
    """A refusal that names the user's line."""
    where, within = _user_line(lines)
    return Refusal(Reason(why, op, where, help, within))


def _user_line(lines: list[Line]) -> tuple[str, str]:
    """The user's `model.py:41`, and the layer's `torch/nn/modules/linear.py:134` or ""."""
    if not lines:
        return "the loss", ""
    path, number = lines[-1]
    inner = lines[0]
    within = "" if inner == lines[-1] else f"{_below_packages(inner.path)}:{inner.number}"
    return f"{path}:{number}", within


def at_lines(lines: list[Line], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function as if it were called at these lines, so that JAX finds them for its own."""
    if not lines:
        return function(*args, **kwargs)
    inner, *outer = lines
    return at_lines(outer, _calling_at(inner), function, *args, **kwargs)


def _calling_at(line: Line) -> Callable[..., Any]:
    """What calls a function from this line."""

    def call(function: Any, *args: Any, **kwargs: Any) -> Any: return function(*args, **kwargs)  # noqa: E501, E704  # fmt: skip

    placed = call.__code__.replace(co_filename=line.path, co_firstlineno=line.number)
    call.__code__ = placed
    return call


def _lines_above(frame: FrameType | None) -> list[Line]:
    """Of layers and of other libraries up to the user's own line; none where there is none."""
    found: list[Line] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(HERE):
            return []
        if not path.is_relative_to(TORCH) or path.is_relative_to(LAYERS):
            found.append(Line(str(path), frame.f_lineno))
            if not any(part in INSTALLED for part in path.parts):
                return [found[0], found[-1]] if len(found) > 1 else found
        frame = frame.f_back
    return []


def _below_packages(path: str) -> str:
    parts = Path(path).parts
    places = [i for i, part in enumerate(parts) if part in INSTALLED]
    return "/".join(parts[places[-1] + 1 :]) if places else path
