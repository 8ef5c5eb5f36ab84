"""Padding in verification: which examples are real, and results with rows for the others."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hlo_surgery.requests.request import Request
from hlo_surgery.verification.inputs import Arrays, Order
from hlo_surgery.verification.tolerances import Array


def with_flags(arrays: Arrays, request: Request) -> Arrays:
    """Random inputs whose flags are flags: about half of the examples are real, two at least where
    there are two.
    """
    if request.is_real is None:
        return arrays
    flags = np.zeros_like(arrays[request.is_real])
    flags[::2] = flags[:2] = 1
    return [flags if i == request.is_real else array for i, array in enumerate(arrays)]


def real_examples(request: Request, inputs: Sequence[Any]) -> Order:
    """The numbers of the examples that are no padding, ascending. Raises ValueError where there is
    none.
    """
    if request.is_real is None:
        return np.arange(request.size)
    flags = np.asarray(inputs[request.is_real])
    if not np.isin(flags, (0, 1)).all():
        raise ValueError(
            "the argument that says which examples are real must hold flags or 0/1 alone"
        )
    if not flags.any():
        raise ValueError(
            "no example of these inputs is real, so that there is nothing to verify; give it others"
        )
    return np.flatnonzero(flags)


def among_padding(order: Order, real: Order, size: int) -> Order:
    """The order of a whole batch that has these examples in the real ones' places, and padding in
    its own.
    """
    whole = np.arange(size)
    whole[real] = order
    return whole


def with_zeros(array: Array, shape: Sequence[int], real: Order) -> Array:
    """What was found for the real examples, with zeros for padding along each axis that is of
    examples in `shape`.
    """
    if array.shape == tuple(shape):
        return array
    whole = np.zeros(shape, array.dtype)
    pairs = zip(array.shape, shape, strict=True)
    whole[np.ix_(*(np.arange(n) if n == size else real for n, size in pairs))] = array
    return whole
