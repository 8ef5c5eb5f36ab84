"""Gradient costs: what all ways to come by examples' gradients take, beside the plain gradient.

The model is a roofline: each part takes as long as its FLOPs or its bytes do, whichever is longer,
with the corrections that a device states.

Roofline: a device as what it computes and moves a second, and where XLA falls short of that.

Schedule: how a loop goes over the examples, by which it costs more or less.

Site counts: FLOPs and bytes of the ops that sum the examples, as the module has them.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of
from hlo_surgery.passes.ir.errors import source_line
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import SUMMING
from hlo_surgery.passes.terms.convolutions import windows_of
from hlo_surgery.passes.terms.site_functions import in_order
from hlo_surgery.passes.terms.steps import GradientSlice, contracted, is_ragged

# What kernels of ours are written in, and the platform for which JAX lowers it.
Kernels = Literal["mosaic", "triton"]
PLATFORMS: dict[Kernels, str] = {"mosaic": "tpu", "triton": "cuda"}


@dataclass(frozen=True)
class Roofline:
    """A device: dense FLOP/s of its matrices, and bytes/s of its memory.

    `narrow_flops`: those with operands of 16 bits, where they differ. `vector_flops`: those of what
    is no contraction, where other units do it, as a GPU's CUDA cores. `exact_flops`: those of
    contractions that keep all bits of float32, where they differ: a TPU multiplies in six passes,
    and CUDA cores do what tensor cores cannot.

    Where counting misjudges XLA, a correction is stated: `batched` is the part of those FLOP/s that
    contractions with a batch dimension reach; `depth` how many terms an element must be the sum of
    for its matrix unit to be busy; `step_seconds` what a step of a loop costs beside its work;
    `cached` how much faster what fits into `cache` bytes is moved; `lifted_element` the seconds for
    each element of lifted gradients of more than `small` bytes each, and `lifted_part` the part of
    the bandwidth at which these are written and read. `fuses_lifted`: XLA reduces
    over the examples within the batched contraction that makes their gradients, so that those never
    reach memory, nor do convolutions' patches; with norms too, if the sums over examples are at
    most `fused_sum` bytes. `read_element`: the seconds for each element of what is there already
    and is summed, where memory is faster than that. `written_out`: up to so many steps of a loop
    are better written out one after the other, as XLA then fuses each example's contraction with
    the sums that it is added to, if those fit into `cache`. `widest_chunk`: of examples that a loop
    lifts at once. `group_patches`: convolutions with groups, as depthwise ones, are better
    contracted by patches too; `library_features`: from how many features on one example's are
    better contracted by XLA's own. `narrow_operands`: bfloat16 is contracted into float32
    everywhere; XLA on CPU fails to in some loops. `unnoticed`: bytes of temporaries that need no
    asking. `copies_merged`: of small contractions with an operand in common XLA makes one, for
    which it copies the others into one. `scaling`: how often operands are moved to be scaled
    before they are contracted. `kernels`: what kernels for it are written in; where it has
    none, they can be interpreted, which is slow. `kernel_rate`: the part of the FLOP/s that they
    reach with operands of 16 bits, where that was measured; 0 where it was not, and no plan takes
    them unasked.
    """

    name: str
    flops: float
    bandwidth: float
    batched: float = 1
    depth: int = 1
    step_seconds: float = 2e-6
    cache: float = 0
    cached: float = 1
    lifted_element: float = 0
    lifted_part: float = 1
    small: float = 128e3
    fuses_lifted: bool = False
    fused_sum: float = 0
    read_element: float = 0
    written_out: int = 0
    widest_chunk: int = 1 << 20
    group_patches: bool = True
    library_features: float = math.inf
    narrow_operands: bool = True
    copies_merged: bool = False
    scaling: float = 2
    kernels: Kernels | None = None
    kernel_rate: float = 0
    unnoticed: int = 4 << 20
    narrow_flops: float = 0
    vector_flops: float = math.inf
    exact_flops: float = 0

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so many FLOPs and bytes."""
        return max(flops / self.flops, moved / self.bandwidth)

    def rate(self, narrow: bool) -> float:
        """FLOP/s of matrices whose elements have at most 16 bits, or more."""
        return self.narrow_flops or self.flops if narrow else self.flops

    def contraction_rate(self, depth: int, batched: bool, narrow: bool = False) -> float:
        """FLOP/s of a contraction whose results are sums of `depth` terms each.

        What sums nothing is no work for matrix units: XLA leaves it to the others, where there are
        any.
        """
        if depth == 1 and self.vector_flops < math.inf:
            return self.vector_flops
        filled = min(1, depth / self.depth)
        return self.rate(narrow) * filled * (self.batched if batched else 1)

    def exact_rate(self, narrow: bool) -> float:
        """FLOP/s of a contraction with a batch dimension, of which each product is exact."""
        exact = self.rate(narrow=True) if narrow else self.exact_flops or self.flops
        return exact * self.batched

    def lifting_seconds(self, own: float, size: int, sums: int) -> float:
        """The least time to write and use `size` examples' gradients at once, of `own` bytes each.

        `sums`: how many over the examples read them; 0 if they are used as made, and not written.
        """
        held = size * own
        moved = self.moving_seconds(2 * held, held) / self.lifted_part if sums else 0
        element = self.lifted_element if own > self.small else sums * self.read_element
        return max(moved, held / 4 * element)

    def moving_seconds(self, moved: float, held: float) -> float:
        """The time to move bytes of which `held` are moved again and again."""
        return moved / (self.bandwidth * (self.cached if held <= self.cache else 1))


@dataclass(frozen=True)
class Limits:
    """What a choice is bound to. `strategy`: the name of one that is forced, or "auto";
    `memory_budget`: bytes of temporaries for one gradient; `reuse_gradient`: whether to take the
    gradient from each example's; `shards`: over how many devices the examples lie.
    """

    strategy: str = "auto"
    memory_budget: int | None = None
    reuse_gradient: bool | None = None
    shards: int | None = None


@dataclass(frozen=True)
class Schedule:
    """How a loop goes over the examples: `chunk` at a time, over so many devices each its own.

    `written_out`: step after step, without a loop; `parts`: on how many devices the parts of one
    example's gradient lie, as the layers of a model that is split over them.
    """

    chunk: int
    shards: int
    written_out: bool
    parts: int = 1


# Bytes of an element that matrix units take at their full rate.
NARROW = 2


@dataclass(frozen=True)
class SitePlan:
    """One site: its op, the user's source line, and the FLOPs and bytes of the plain contraction.

    `trips`: how often it runs, where it lies in a loop.
    """

    op: str
    where: str
    flops: int
    bytes: int
    trips: int = 1


@dataclass(frozen=True)
class SiteCounts:
    """One site: FLOPs, bytes read and written, and how many terms each element of its result sums.

    `spread`: how often a convolution's image is read when it is taken apart into patches. `narrow`:
    its operands have at most 16 bits an element. `copies`: how often its rows are taken to have
    all examples alone at once, as rows of a ragged axis are for each; `windows`: in how many parts
    it takes an example's own in a loop, or 0 where they are not in the order of their owners.
    """

    flops: int
    read: int
    written: int
    depth: int
    contracts: bool
    spread: int = 1
    narrow: bool = False
    copies: int = 1
    windows: int = 0


def site_plan(op: Operation) -> SitePlan:
    """A site with its counted cost."""
    counts = site_counts(op)
    return SitePlan(op.name, source_line(op), counts.flops, counts.read + counts.written)


def site_counts(op: Operation) -> SiteCounts:
    """What a site costs in the module as it is."""
    read, written = sum(map(bytes_of, op.operands)), sum(map(bytes_of, op.results))
    made = max(math.prod(mlir.shape(op.results[0])), 1)
    flops = flops_of(op)
    contracts = op.name in SUMMING
    depth = max(flops // (2 * made), 1) if contracts else 1
    narrow = all(dtype_of(value).itemsize <= NARROW for value in op.operands)
    return SiteCounts(flops, read, written, depth, contracts, _spread(op), narrow)


def bytes_of(value: Value) -> int:
    """What an array takes."""
    return math.prod(mlir.shape(value)) * dtype_of(value).itemsize


def flops_of(op: Operation) -> int:
    """Two for each multiply-add of a contraction, one for each element summed by a reduction."""
    if op.name in SUMMING:
        return 2 * math.prod(mlir.shape(op.result)) * contracted(op)[1].positions
    return max(math.prod(mlir.shape(v)) for v in [*op.operands, *op.results])


def _spread(op: Operation) -> int:
    """At how many places a window lies, at most as often as it reads each element of the image."""
    if op.name != "stablehlo.convolution":
        return 1
    windows = windows_of(op)
    places, length = math.prod(w.places for w in windows), math.prod(w.length for w in windows)
    image = math.prod(mlir.shape(op.operands[0])[w.dim] for w in windows)
    return max(1, places * length // max(image, 1))


# Bytes of a float32.
WORD = 4
# Of half as many rows as an example has in the middle; the last is hardly ever full.
WINDOWS = 2


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
    def windows(self) -> int:
        """In how many a step of a loop reads an example's rows of ragged axes, at all sites."""
        return sum(site.windows for site in self.sites)

    @property
    def read(self) -> int:
        """What the sites read."""
        return sum(site.read for site in self.sites)


def counts_of(sliced: GradientSlice, size: int) -> Counts:
    """What there is to count in a slice."""
    pairs = zip(sliced.sites, in_order(sliced).sites, strict=True)
    sites = tuple(
        replace(
            site_counts(s.op),
            copies=size if is_ragged(s) else 1,
            windows=0 if own == s else WINDOWS,
        )
        for s, own in pairs
    )
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
    copies = site.copies if batched or not site.windows else site.windows
    depth = max(site.depth * copies // size, 1)
    rate = device.contraction_rate(depth, batched, site.narrow)
    contracted = site.flops / rate if site.contracts else 0
    return copies * max(contracted, site.read / device.bandwidth)
