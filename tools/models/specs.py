"""Of what shapes a small model's arguments are; whoever dumps it draws their values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """A parameter: normal, scaled by the root of its fan-in."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Input:
    """An argument beside the parameters: normal floats, or integers in [0, below). `axis` carries
    the examples.
    """

    shape: tuple[int, ...]
    axis: int | None = 0
    below: int | None = None
