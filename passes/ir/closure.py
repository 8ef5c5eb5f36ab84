"""Closure: what is reached from some values by going on, each value once."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Value = TypeVar("Value")


def closure(starts: Iterable[Value], following: Callable[[Value], Iterable[Value]]) -> set[Value]:
    """The starts and all that follows them, step by step.

    >>> sorted(closure([6], lambda n: [n // 2] if n else []))
    [0, 1, 3, 6]
    """
    pending = list(starts)
    found = set(pending)
    while pending:
        new = [v for v in dict.fromkeys(following(pending.pop())) if v not in found]
        found.update(new)
        pending += new
    return found
