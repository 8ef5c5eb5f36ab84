"""Site counts: FLOPs and bytes of the ops that sum the examples, as the module has them."""

import math
from dataclasses import dataclass

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.linearity import SUMMING
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.terms.contracted_dims import contracted
from hlo_surgery.passes.terms.convolution_patches import windows_of

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
    its operands have at most 16 bits an element.
    """

    flops: int
    read: int
    written: int
    depth: int
    contracts: bool
    spread: int = 1
    narrow: bool = False


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
        return 2 * math.prod(mlir.shape(op.results[0])) * contracted(op)[1].positions
    return max(math.prod(mlir.shape(v)) for v in [*op.operands, *op.results])


def _spread(op: Operation) -> int:
    """At how many places a window lies, at most as often as it reads each element of the image."""
    if op.name != "stablehlo.convolution":
        return 1
    windows = windows_of(op)
    places, length = math.prod(w.places for w in windows), math.prod(w.length for w in windows)
    image = math.prod(mlir.shape(op.operands[0])[w.dim] for w in windows)
    return max(1, places * length // max(image, 1))
