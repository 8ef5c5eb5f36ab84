"""Rooflines: what a device computes and moves a second; planning weighs FLOPs and bytes by it."""

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Roofline:
    """A device: dense FLOP/s in its fastest matrix type, and bytes/s of its memory.

    Where counting misjudges XLA, a correction is stated: `batched` is the part of those FLOP/s that
    contractions with a batch dimension reach; `depth` how many terms an element must be the sum of
    for its matrix unit to be busy; `step_seconds` what a step of a loop costs beside its work;
    `cached` how much faster what fits into `cache` bytes is moved; `lifted_element` the seconds for
    each element of lifted gradients of more than `small` bytes each. `fuses_lifted`: XLA reduces
    over the examples within the batched contraction that makes their gradients, so that those never
    reach memory, nor do convolutions' patches. `written_out`: up to so many steps of a loop are
    better written out one after the other, as XLA then fuses each example's contraction with the
    sums that it is added to, if those fit into `cache`. `widest_chunk`: of examples that a loop
    lifts at once. `group_patches`: convolutions with groups, as depthwise ones, are better
    contracted by patches too. `narrow_operands`: bfloat16 is contracted into float32 everywhere;
    XLA on CPU fails to in some loops.
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
    small: float = 128e3
    fuses_lifted: bool = False
    written_out: int = 0
    widest_chunk: int = 1 << 20
    group_patches: bool = True
    narrow_operands: bool = True

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on a computation is bound by arithmetic."""
        return self.flops / self.bandwidth

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so many FLOPs and bytes."""
        return max(flops / self.flops, moved / self.bandwidth)

    def contraction_rate(self, depth: int, batched: bool) -> float:
        """FLOP/s of a contraction whose results are sums of `depth` terms each."""
        return self.flops * min(1, depth / self.depth) * (self.batched if batched else 1)

    def lifting_seconds(self, own: float, size: int, fused: bool) -> float:
        """The least time to write and use `size` examples' gradients at once, of `own` bytes each.

        `fused`: they are used as they are made, and not written.
        """
        moved = 0 if fused else 2 * size * own / self.bandwidth
        return max(moved, size * own / 4 * self.lifted_element) if own > self.small else moved

    def moving_seconds(self, moved: float, held: float) -> float:
        """The time to move bytes of which `held` are moved again and again."""
        return moved / (self.bandwidth * (self.cached if held <= self.cache else 1))


def _tpu(name: str, flops: float, bandwidth: float) -> Roofline:
    return Roofline(
        f"tpu:{name}",
        flops,
        bandwidth,
        depth=128,
        step_seconds=1.5e-6,
        cache=64e6,
        cached=40,
        lifted_element=2.5e-12,
        widest_chunk=1,
        fuses_lifted=True,
        written_out=2,
        group_patches=False,
    )


# Accelerators by their makers' data sheets, per chip, with bfloat16 (for GPU: TF32) matrices; "gpu"
# is an H200. TPU: the chip's own memory as cache, and the rest by bundles counted for v5e
# (`tools/bundle_time.py`), where a step of a loop costs 1.2 to 12 us over convolutions and about 1
# us over dense layers of 1024 x 1024 and 1024 x 4096, an element of lifted gradients 1 to 12 ps,
# and two steps written out less than a loop; so that dense layers are looped over where their sums
# fit into the cache, and convolutions lifted. CPU: two cores, measured with a float32 matmul of
# 2048, a copy of 1 GB, and batched contractions of 1 to 512 terms; those by jaxlib 0.10 take about
# 10 ns for each element of large results, whatever their terms.
ROOFLINES = {
    "cpu": Roofline(
        "cpu",
        450e9,
        10e9,
        batched=0.12,
        step_seconds=5e-6,
        cache=8e6,
        cached=5,
        lifted_element=10e-9,
        widest_chunk=1,
        narrow_operands=False,
    ),
    "gpu": Roofline("gpu", 494e12, 4.8e12, depth=32, step_seconds=10e-6),
    "tpu:v3": _tpu("v3", 123e12, 0.9e12),
    "tpu:v4": _tpu("v4", 275e12, 1.228e12),
    "tpu:v5e": _tpu("v5e", 197e12, 0.819e12),
    "tpu:v5p": _tpu("v5p", 459e12, 2.765e12),
    "tpu:v6e": _tpu("v6e", 918e12, 1.64e12),
}
DEVICE_KINDS = {
    "TPU v2": "tpu:v3",
    "TPU v3": "tpu:v3",
    "TPU v4": "tpu:v4",
    "TPU v5 lite": "tpu:v5e",
    "TPU v5e": "tpu:v5e",
    "TPU v5": "tpu:v5p",
    "TPU v5p": "tpu:v5p",
    "TPU v6 lite": "tpu:v6e",
    "TPU v6e": "tpu:v6e",
}


def roofline(target: str | None = None) -> Roofline:
    """The device of a target: 'cpu', 'gpu', 'tpu', 'tpu:v5e', 'tpu:v5e:2x4'; None: JAX's default.

    Raises ValueError for any other name.

    >>> roofline("tpu:v5e:2x4").name
    'tpu:v5e'
    """
    name = row_of(jax.devices()[0]) if target is None else ":".join(target.split(":")[:2])
    name = "tpu:v5e" if name == "tpu" else name
    if name not in ROOFLINES:
        raise ValueError(f"there is no target {target!r}; there are {', '.join(ROOFLINES)}")
    return ROOFLINES[name]


def row_of(device: Any) -> str:
    """The name of a JAX device's row in the table."""
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(device.platform, str(device.platform))
    return DEVICE_KINDS.get(device.device_kind, platform)
