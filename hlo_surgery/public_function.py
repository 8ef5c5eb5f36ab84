"""Public functions as help() and the site show them: what they take, in short.

hlo_surgery.passes.measures.measures.MeanOf | ... | Derived    =>    Statistic
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

Function = Callable[..., Any]
KINDS = r"\b(MeanOf \| PerExampleGradients \| )?(Derived|MeanOf|PerExampleGradients)\b"


def public(function: Function) -> Function:
    """The function itself, which tells what it takes in words of the documentation."""
    vars(function)["__signature__"] = _short(function)
    return function


class _Text(str):
    """An annotation that is shown as it reads."""

    __repr__ = str.__str__


def _short(function: Function) -> inspect.Signature:
    """What it takes and returns; planning by its keywords."""
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
    for function in filter(inspect.isfunction, map(room.get, names)):
        public(function)
