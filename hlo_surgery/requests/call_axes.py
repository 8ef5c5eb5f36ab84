"""Axes of custom calls as they were given, checked; what they must fit only the module tells."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from hlo_surgery.passes.normalise.calls import CallAxes

EXAMPLE = '{"my_kernel": ((0, 0, None), 0)}'


def checked_calls(given: Any) -> CallAxes:
    """Raises TypeError for what is no mapping from names to the axes of operands and results.

    >>> checked_calls({"my_kernel": ([0, None], 0)})
    {'my_kernel': ([0, None], 0)}
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"custom_calls is {given!r}; pass a dict such as {EXAMPLE}")
    calls = cast(Mapping[Any, Any], given)
    for name, axes in calls.items():
        pair = isinstance(axes, tuple | list) and len(cast(Sequence[Any], axes)) == 2
        if not isinstance(name, str) or not pair or not all(map(_is_axes, axes)):
            raise TypeError(
                f"custom_calls holds {name!r}: {axes!r}; a call's name goes with the axes of its "
                f"operands and those of its results, such as {EXAMPLE}"
            )
    return dict(calls)


def _is_axes(given: Any) -> bool:
    """Whether these are an axis, none, or one for each array."""
    each: Any = given if isinstance(given, tuple | list) else [given]
    return all(a is None or (isinstance(a, int) and not isinstance(a, bool)) for a in each)
