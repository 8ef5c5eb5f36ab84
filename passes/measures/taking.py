"""Taking: what it costs to take a measure of one example's gradient, once that is there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Taking:
    """`flops` of contractions and `held` bytes of results for each example; `drawn`: bytes that are
    made once for all examples taken at a time, as random signs are.
    """

    flops: int = 0
    held: int = 0
    drawn: int = 0

    def __add__(self, other: "Taking") -> "Taking":
        return Taking(self.flops + other.flops, self.held + other.held, self.drawn + other.drawn)
