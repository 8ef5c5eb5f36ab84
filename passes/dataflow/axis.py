"""Axes: where the examples lie along one dimension of a value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PerExample:
    """Slice b depends on example b alone. Dimension `dim` has size before * B * after,
    row-major.
    """

    dim: int
    before: int = 1
    after: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether the dimension holds nothing but the examples."""
        return self.before == self.after == 1
