"""Roofline: a device as what it computes and moves a second, and where XLA falls short of that."""

import math
from dataclasses import dataclass
from typing import Literal

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
    contracted by patches too. `narrow_operands`: bfloat16 is contracted into float32 everywhere;
    XLA on CPU fails to in some loops. `unnoticed`: bytes of temporaries that need no asking.
    `copies_merged`: of small contractions with an operand in common XLA makes one, for
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

    def lifting_seconds(self, own: float, size: int, fused: bool) -> float:
        """The least time to write and use `size` examples' gradients at once, of `own` bytes each.

        `fused`: they are used as they are made, and not written.
        """
        moved = 0 if fused else 2 * size * own / (self.bandwidth * self.lifted_part)
        return max(moved, size * own / 4 * self.lifted_element) if own > self.small else moved

    def moving_seconds(self, moved: float, held: float) -> float:
        """The time to move bytes of which `held` are moved again and again."""
        return moved / (self.bandwidth * (self.cached if held <= self.cache else 1))
