"""Public functions as a user sees them: what they take in short, and no frames of ours in errors.

    hlo_surgery.passes.measures.measures.MeanOf | ... | Derived    =>    Statistic
    the user's line, eight frames of ours, the user's loss         =>    two lines of the user's

As with JAX's own frames, the environment's `JAX_TRACEBACK_FILTERING=off` brings them back; where we
are at fault they stay.
"""

import inspect
import opcode
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
OWN = __name__.partition(".")[0]
# What calls jax.grad with the user's own arguments: JAX's checks of these leave no frame of JAX.
DIFFERENTIATES = f"{OWN}.frameworks.models"
RAISE = opcode.opmap["RAISE_VARARGS"]
KINDS = r"\b(MeanOf \| PerExampleGradients \| )?(Derived|MeanOf|PerExampleGradients)\b"


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The function, for users."""

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as problem:
            if problem.__traceback__ and not _is_called_by_us(problem.__traceback__.tb_frame):
                _hide_own_frames(problem)
            raise

    vars(door)["__signature__"] = _short(function)
    return door


def _is_called_by_us(door: FrameType) -> bool:
    """Whether a function of ours is further out: another door, or a command, sees to errors."""
    return any(_is_own(frame) for frame, _ in traceback.walk_stack(door.f_back))


def _hide_own_frames(problem: BaseException | None) -> None:
    """Of an exception, and of those that it came of."""
    import jax

    config: Any = jax.config
    while problem is not None and config.jax_traceback_filtering != "off":
        frames = list(_entries(problem.__traceback__))
        if frames and (is_said(problem) or not _is_own(frames[-1].tb_frame, but=DIFFERENTIATES)):
            problem.__traceback__ = None
            for entry in reversed([entry for entry in frames if not _is_own(entry.tb_frame)]):
                where = entry.tb_frame, entry.tb_lasti, entry.tb_lineno
                problem.__traceback__ = TracebackType(problem.__traceback__, *where)
        problem = problem.__cause__ or problem.__context__


def is_said(problem: BaseException) -> bool:
    """Whether this library raised it to tell its user something, or nobody had thought of it."""
    last = list(_entries(problem.__traceback__))[-1]
    is_raised = last.tb_frame.f_code.co_code[last.tb_lasti] == RAISE
    return _is_own(last.tb_frame) and is_raised and not isinstance(problem, AssertionError)


def own_entries(problem: BaseException) -> list[TracebackType]:
    """What of an exception's traceback is in this library."""
    return [each for each in _entries(problem.__traceback__) if _is_own(each.tb_frame)]


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_own(frame: FrameType, but: str = "") -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] == OWN and name != but


class _Text(str):
    """An annotation that is shown as it reads."""

    __repr__ = str.__str__


def _short(function: Function) -> inspect.Signature:
    """What it takes and returns, in words of the documentation; planning by its keywords."""
    signature = inspect.signature(function)
    return signature.replace(
        parameters=[q for p in signature.parameters.values() for q in _parameters(p)],
        return_annotation=_annotation(signature.return_annotation),
    )


def _parameters(given: inspect.Parameter) -> list[inspect.Parameter]:
    if "PlanningOptions" not in str(given.annotation):
        return [given.replace(annotation=_annotation(given.annotation))]
    from hlo_surgery.requests.options import PlanningChoices

    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(f.name, kind, default=f.default, annotation=_annotation(f.type))
        for f in fields(PlanningChoices)
    ]


def _annotation(annotation: Any) -> Any:
    """Types without their modules."""
    if annotation is inspect.Parameter.empty:
        return annotation
    told = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Text(re.sub(KINDS, "Statistic", re.sub(r"(?:\w+\.)+(?=\w)", "", told)))


def publish(room: dict[str, Any], names: Iterable[str]) -> None:
    """Make what a room gives public, by the dict of its names."""
    room |= {name: public(room[name]) for name in names if inspect.isfunction(room[name])}
