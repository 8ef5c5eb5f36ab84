"""Integers: Python's, and what other libraries have for them."""

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
