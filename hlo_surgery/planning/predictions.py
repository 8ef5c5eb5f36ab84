"""Predictions: each strategy's seconds and temporaries beside the plain gradient's, from counts.

The model is a roofline: each part takes as long as its FLOPs or its bytes do, whichever is longer,
with the corrections that the table of devices states.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_surgery.passes.strategies.ghost_paths import Path, path_counts
from hlo_surgery.passes.terms.gradient_slices import GradientSlice
from hlo_surgery.planning.plan import Predicted
from hlo_surgery.planning.rooflines import Roofline
from hlo_surgery.planning.site_counts import SiteCounts, bytes_of, site_counts

# Inner products and indices are float32 and int32.
WORD = 4


@dataclass(frozen=True)
class Counts:
    """A gradient: its sites, its bytes, and the number of examples."""

    sites: tuple[SiteCounts, ...]
    gradient: int
    size: int

    @property
    def read(self) -> int:
        """What the sites read."""
        return sum(site.read for site in self.sites)


def counts_of(sliced: GradientSlice, size: int) -> Counts:
    """What there is to count in a slice."""
    return Counts(
        tuple(site_counts(site.op) for site in sliced.sites), bytes_of(sliced.value), size
    )


def plain_seconds(counts: Counts, device: Roofline) -> float:
    """The sites themselves."""
    return sum(_site_seconds(site, device, 1) for site in counts.sites)


def _site_seconds(site: SiteCounts, device: Roofline, copies: int) -> float:
    """A site, with operands read `copies` times."""
    rate = device.contraction_rate(site.depth, False)
    return max(site.flops / rate, _moved(site, copies) / device.bandwidth)


def _moved(site: SiteCounts, copies: int) -> int:
    """What is read and written; sums that are no contraction fuse with what makes operands."""
    return (copies if site.contracts else 1) * site.read + site.written


def predict_square(counts: Counts, device: Roofline, times: Sequence[int]) -> Predicted:
    """Each site's contraction so many times more, of operands squared and written before."""
    sites = list(zip(times, counts.sites, strict=True))
    seconds = sum(n * _site_seconds(site, device, copies=3) for n, site in sites)
    return Predicted(seconds, sum(n * site.read for n, site in sites))


def predict_ghost(counts: Counts, paths: Sequence[Path], device: Roofline) -> Predicted:
    """Inner products of all pairs of an example's positions."""
    each = [path_counts(path, counts.size) for path in paths]
    pairs = counts.size * sum(count for count, _, _ in each) ** 2
    flops = 2 * pairs * max(elements for _, elements, _ in each)
    moved = counts.read + 2 * pairs * WORD
    seconds = max(flops / device.contraction_rate(device.depth, True), moved / device.bandwidth)
    return Predicted(seconds, 2 * pairs * WORD)


def predict_segments(counts: Counts, device: Roofline) -> Predicted:
    """Rows sorted and summed within each example, and scattered."""
    return Predicted(6 * counts.read / device.bandwidth, 2 * counts.read)


def predict_lift(counts: Counts, device: Roofline) -> Predicted:
    """All gradients written and read, unless XLA fuses that; instead of the plain gradient."""
    made = _made_at_once(counts, device, counts.size)
    lifted = counts.size * counts.gradient
    fused = device.fuses_lifted and len(counts.sites) == 1 and counts.sites[0].contracts
    moved = device.lifting_seconds(counts.gradient, counts.size, fused)
    held = _patches(counts, device) + (0 if fused else lifted)
    return Predicted(made + moved - plain_seconds(counts, device), held)


def predict_loop(counts: Counts, device: Roofline, chunk: int, written_out: bool) -> Predicted:
    """A chunk of gradients at a time and two accumulators moved; instead of the plain gradient.

    Steps that are written out are fused with the accumulation, and so take as long as the longer of
    both.
    """
    made = _made_at_once(counts, device, chunk)
    if written_out:
        accumulating = device.moving_seconds(counts.size * 4 * counts.gradient, 2 * counts.gradient)
        return Predicted(
            max(made, accumulating) - plain_seconds(counts, device), 2 * counts.gradient
        )
    steps = -(-counts.size // chunk)
    moved = steps * 4 * counts.gradient + counts.size * 2 * counts.gradient
    held = (2 + chunk) * counts.gradient
    seconds = made + device.moving_seconds(moved, held) + steps * device.step_seconds
    return Predicted(
        seconds - plain_seconds(counts, device),
        held + chunk * _patches(counts, device) // counts.size,
    )


def _patches(counts: Counts, device: Roofline) -> int:
    """What all examples' images take once taken apart; nothing where XLA does that on the way."""
    return 0 if device.fuses_lifted else sum((site.spread - 1) * site.read for site in counts.sites)


def _made_at_once(counts: Counts, device: Roofline, chunk: int) -> float:
    """The time to contract each example alone, `chunk` of them at a time."""
    patches = _patches(counts, device)
    moving = device.moving_seconds(2 * patches, patches * chunk // counts.size)
    return moving + sum(
        _contracted_alone(site, counts.size, device, chunk > 1) for site in counts.sites
    )


def _contracted_alone(site: SiteCounts, size: int, device: Roofline, batched: bool) -> float:
    rate = device.contraction_rate(max(site.depth // size, 1), batched)
    return max(site.flops / rate if site.contracts else 0, site.read / device.bandwidth)
