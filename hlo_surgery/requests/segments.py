"""Segments: rows that belong to examples by ids, which are not taken."""

from typing import Any

NOT_TAKEN = (
    "segments is given, but rows that belong to examples by ids are not taken; give each example "
    "as many rows, with padding that a mask or is_real leaves out, and pass rows_per_example=...; "
    "of experts, dispatch densely, so that tokens stay in their rows"
)


def refuse_segments(segments: Any) -> None:
    """Raises ValueError where ids of rows are given."""
    if segments is not None and segments != []:
        raise ValueError(NOT_TAKEN)
