"""Wording: numbers, lists and tables as all that the library says has them.

Integers as users give them.
"""

import operator
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

LISTED = 12


def integer_of(value: Any) -> int | None:
    """Python's integer for one of any library, such as NumPy's; None for what is none.

    A truth value is none, and neither is a traced number, of which nothing is known yet.

    >>> import numpy as np
    >>> integer_of(np.int64(3)), integer_of(3.0), integer_of(True)
    (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def counted(number: int, noun: str) -> str:
    """The number with the noun, in the plural where it is not one.

    >>> counted(1, "statistic"), counted(4, "output")
    ('1 statistic', '4 outputs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listing(each: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(each) - LISTED
    return ", ".join(each[:LISTED]) + (f" and {more} more" if more > 0 else "")


def quantity(number: float) -> str:
    """A number with a unit prefix: 12345 -> '12.3 k'."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"


def duration(seconds: float) -> str:
    """Signed seconds with a unit: 1.234e-5 -> '+12.3 us'."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:+.3g} {unit}"
    return f"{seconds / 1e-9:+.3g} ns"


def bare(op: str) -> str:
    """The name of an op without its dialect: 'stablehlo.dot_general' -> 'dot_general'."""
    return op.removeprefix("stablehlo.")


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """A table of text, lines within a cell kept; `numbers`: the columns to be set on the right."""
    kinds = ["number" if title in numbers else "name" for title in titles]
    head = "".join(
        f'<th class="{kind}">{escape(title)}</th>'
        for kind, title in zip(kinds, titles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{"<br>".join(map(escape, cell.splitlines()))}</td>'
            for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
