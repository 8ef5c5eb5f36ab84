"""Gradient costs: what all ways to come by examples' gradients take, beside the plain gradient.

The model is a roofline: each part takes as long as its FLOPs or its bytes do, whichever is longer,
with the corrections that a device states.
"""

from dataclasses import dataclass

from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.costs.site_counts import SiteCounts, bytes_of, site_counts
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.terms.steps import GradientSlice

# Bytes of a float32.
WORD = 4


@dataclass(frozen=True)
class Predicted:
    """What a strategy is predicted to take beside the plain gradient: seconds, temporary bytes.

    Seconds are negative where the gradient is had from the same tensors for less than it took.
    """

    seconds: float
    temporaries: int


@dataclass(frozen=True)
class Counts:
    """A gradient: its sites, its bytes, and the number of examples. `held`: the bytes of one
    example's gradient while it is used, which is float32 at least.
    """

    sites: tuple[SiteCounts, ...]
    gradient: int
    held: int
    size: int

    @property
    def elements(self) -> int:
        """Those of one example's gradient, as float32."""
        return self.held // WORD

    @property
    def read(self) -> int:
        """What the sites read."""
        return sum(site.read for site in self.sites)


def counts_of(sliced: GradientSlice, size: int) -> Counts:
    """What there is to count in a slice."""
    sites = tuple(site_counts(step.op) for step in sliced.sites)
    gradient, word = bytes_of(sliced.value), dtype_of(sliced.value).itemsize
    return Counts(sites, gradient, gradient * max(word, WORD) // word, size)


def plain_seconds(counts: Counts, device: Roofline) -> float:
    """The sites themselves."""
    return sum(site_seconds(site, device, 1) for site in counts.sites)


def site_seconds(site: SiteCounts, device: Roofline, copies: int) -> float:
    """A site, with operands read `copies` times."""
    rate = device.contraction_rate(site.depth, False, site.narrow)
    return max(site.flops / rate, _moved(site, copies) / device.bandwidth)


def _moved(site: SiteCounts, copies: int) -> int:
    """What is read and written; sums that are no contraction fuse with what makes operands."""
    return (copies if site.contracts else 1) * site.read + site.written


def patches(counts: Counts, device: Roofline) -> int:
    """The bytes of all examples' images once taken apart; 0 where XLA does that on the way."""
    return 0 if device.fuses_lifted else sum((site.spread - 1) * site.read for site in counts.sites)


def seconds_alone(counts: Counts, device: Roofline, chunk: int) -> float:
    """The time to contract each example alone, `chunk` of them at a time."""
    taken_apart = patches(counts, device)
    moving = device.moving_seconds(2 * taken_apart, taken_apart * chunk // counts.size)
    alone = (_contracted_alone(site, counts.size, device, chunk > 1) for site in counts.sites)
    return moving + sum(alone)


def _contracted_alone(site: SiteCounts, size: int, device: Roofline, batched: bool) -> float:
    rate = device.contraction_rate(max(site.depth // size, 1), batched, site.narrow)
    return max(site.flops / rate if site.contracts else 0, site.read / device.bandwidth)
