"""Buffers of a scheduled program: their sizes, their memory, and from when to when they live."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hlo_surgery.targets.scheduled.program import Program
from hlo_surgery.targets.scheduled.shapes import Array, Shape

# A value is the number of its buffer, or a tuple of values.
Value = int | tuple["Value", ...]


@dataclass
class Buffers:
    """What a walk has met: instructions in turn, and each buffer's size, first and last step."""

    program: Program
    steps: list[str] = field(default_factory=list[str])
    sizes: list[int] = field(default_factory=list[int])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    joined: dict[int, int] = field(default_factory=dict[int, int])

    def make(self, shape: Shape, held: bool = True) -> Value:
        """New buffers for a shape; none in main memory if on the chip, or not `held`."""
        if not isinstance(shape, Array):
            return tuple(self.make(part, held) for part in shape)
        self.sizes.append(shape.bytes if held and shape.space == 0 else 0)
        self.spans.append((len(self.steps), len(self.steps)))
        return len(self.sizes) - 1

    def find(self, buffer: int) -> int:
        """The buffer that stands for all those in the same memory."""
        while buffer in self.joined:
            buffer = self.joined[buffer]
        return buffer

    def use(self, value: Value) -> None:
        """The value is live at this step."""
        for buffer in map(self.find, leaves(value)):
            self.spans[buffer] = (self.spans[buffer][0], len(self.steps))

    def join(self, value: Value, other: Value) -> None:
        """Two values lie in the same memory."""
        for one, two in zip(
            map(self.find, leaves(value)), map(self.find, leaves(other)), strict=True
        ):
            if one != two:
                self.joined[two] = one
                starts, ends = zip(self.spans[one], self.spans[two], strict=True)
                self.spans[one] = (min(starts), max(ends))


def leaves(value: Value) -> Iterator[int]:
    """The buffers of a value."""
    if isinstance(value, int):
        yield value
    else:
        for part in value:
            yield from leaves(part)
