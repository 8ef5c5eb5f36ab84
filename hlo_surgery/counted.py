"""Counted: how many there are of something, as an integer and in words."""

import operator
from typing import Any


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
