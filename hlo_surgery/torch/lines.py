"""Lines: which line of the user's made each operator of a traced graph, forward and backward."""

from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.public_function import Function
from hlo_surgery.torch.pytorch import (
    DispatchMode,
    backward_number,
    next_number,
    noted_in_graphs,
    torch,
)

HERE = Path(__file__).resolve().parent
TORCH = Path(torch.__file__).resolve().parent
LAYERS = TORCH / "nn" / "modules"
CALL = (lambda function, *args, **named: function(*args, **named)).__code__
INSTALLED = ("site-packages", "dist-packages")


class Line(NamedTuple):
    """A line of a file."""

    path: str
    number: int


class NotedLines(DispatchMode):
    """A mode that has fx note at each operator the layer's line and the user's own.

    A gradient's operators have the lines of what they are the gradient of: autograd numbers its
    nodes as the forward pass makes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._forward: dict[int, list[Line]] = {}

    def note(self, called: FrameType | None) -> None:
        """The line above a call of an operator, at that."""
        found = _lines_above(called.f_back if called else None)
        number = backward_number()
        if number is None:
            self._forward.setdefault(next_number() - 1, found)
        elif not found:
            found = self._forward.get(number, [])
        noted_in_graphs.set_stack_trace([f"{line.path}:{line.number}\n" for line in found])


def lines_of(node: Any) -> list[Line]:
    """What was noted at a node of a graph, innermost first."""
    return _read(node.meta.get("stack_trace") or "")


def current_lines() -> list[Line]:
    """What was noted last."""
    return _read(noted_in_graphs.get_current_meta().get("stack_trace") or "")


def _read(text: str) -> list[Line]:
    parts = (line.rpartition(":") for line in text.splitlines())
    return [Line(path, int(number)) for path, _, number in parts]


def refusal_at(lines: list[Line], op: str, why: str, help: str) -> Refusal:
    """A refusal that names the user's line."""
    if not lines:
        return Refusal(Reason(why, op, "the loss", help))
    # `model.py:41`, and the layer's `torch/nn/modules/linear.py:134` or "".
    inner, own = lines[0], lines[-1]
    within = "" if inner == own else f"{_below_packages(inner.path)}:{inner.number}"
    return Refusal(Reason(why, op, f"{own.path}:{own.number}", help, within))


def at_lines(lines: list[Line], function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call the function as if it were called at these lines, so that JAX finds them for its own."""
    if not lines:
        return function(*args, **kwargs)
    inner, *outer = lines
    return at_lines(outer, _calling_at(inner), function, *args, **kwargs)


def _calling_at(line: Line) -> Function:
    """What calls a function from this line."""
    return FunctionType(CALL.replace(co_filename=line.path, co_firstlineno=line.number), {})


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
