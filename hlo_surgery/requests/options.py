"""What planning can be told: the keywords that everything which plans takes, checked.

Rooflines: what a device computes and moves a second; planning weighs FLOPs and bytes by it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import jax

from hlo_surgery.passes.strategies.gradient_costs import Kernels, Limits, Roofline
from hlo_surgery.wording import integer_of


def _tpu(name: str, flops: float, bandwidth: float, kernels: Kernels | None = None) -> Roofline:
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
        fused_sum=8 << 20,
        read_element=1e-12,
        written_out=8,
        group_patches=False,
        scaling=0,
        kernels=kernels,
        exact_flops=flops / 6,
    )


# An H200's time for each element of lifted gradients, of one position each, whose squares and both
# sums over examples XLA fuses with the products, as FLOPs of its CUDA cores; and the part of its
# bandwidth at which gradients are written and read that XLA does not fuse. By what lifting took at
# five sites (tools/RESULTS.md), 0.9 to 1.4 times what this says.
LIFTED_FLOPS, LIFTED_PART = 31, 0.8
# XLA makes operands again, from what they were made of in float32, for each reading of them: by the
# head of a language model on an H200, whose ghost norms took some 0.4 ms longer than a loop.
SCALING = 10


def _gpu(
    name: str,
    tf32: float,
    bf16: float,
    fp32: float,
    bandwidth: float,
    memory: float,
    kernel_rate: float = 0,
) -> Roofline:
    """A thousandth of a GPU's memory goes unnoticed, and saves loops steps."""
    return Roofline(
        name,
        tf32,
        bandwidth,
        depth=32,
        step_seconds=10e-6,
        lifted_element=LIFTED_FLOPS / fp32,
        lifted_part=LIFTED_PART,
        small=0,
        unnoticed=round(memory / 1000),
        narrow_flops=bf16,
        vector_flops=fp32,
        exact_flops=fp32,
        copies_merged=True,
        scaling=SCALING,
        kernels="triton",
        kernel_rate=kernel_rate,
    )


# Accelerators by their makers' data sheets, per chip, with bfloat16 matrices. GPU: dense matrices
# of TF32, which is what XLA takes for float32 unless more is asked for, and of bfloat16, and FP32
# of the CUDA cores (NVIDIA's data sheets of A100 80GB SXM, H100 SXM, H200 SXM and HGX B200); they
# are within 3 % of units times clock in XLA's descriptions (`targets/gpus.py`). "gpu" is an H200,
# of which no kernel was measured. H100 and H200 have the same multiprocessors.
# TPU: the chip's own memory as cache, and the rest by bundles counted for v5e
# (`tools/bench/bundles/`), where a step of a loop costs 1.2 to 12 us over convolutions and about 1
# us over dense layers of 1024 x 1024 and 1024 x 4096, an element of lifted gradients 1 to 12 ps,
# an element of norms 1 ps for each reading, hidden behind the contraction that makes it, which
# takes sums over examples of 8 MiB along, and not of 16; so that dense layers are looped over where
# their sums fit into the cache, and convolutions lifted. Up to eight steps take less written out
# than in a loop or lifted (`tools/RESULTS.md`), and leave a language model's peak memory
# as it is, where loops take a fifth to a third more.
# CPU: two cores, measured with a float32 matmul of 2048, a copy of 1 GB, and batched contractions
# of 1 to 256 terms, with norms and squares of their results: by jaxlib 0.10 about 150 GFLOP/s,
# and 3 to 6 ns for each element of large results, whatever their terms. Loops over examples take
# up to 0.6 ns for each element that a norm reads;
# of small lifted gradients a sum over the examples takes that, or up to twice as long.
# Products of Gram matrices are counted at a sixth of that rate, by what inner products of 16 and 32
# positions took beside the plain gradient. XLA's own convolutions of one image take 0.3 to 1.1 of
# what patches take from 32 features on, and 1 to 5 times as long below (images of 8 x 8 to 32 x 32,
# 3 to 128 channels).
H200 = _gpu("gpu:h200", 494.7e12, 989.4e12, 66.9e12, 4.8e12, 151e9, kernel_rate=0.57)
ROOFLINES = {
    "cpu": Roofline(
        "cpu",
        450e9,
        10e9,
        batched=0.33,
        exact_flops=82e9,
        step_seconds=5e-6,
        cache=8e6,
        cached=5,
        lifted_element=5e-9,
        read_element=0.6e-9,
        widest_chunk=1,
        library_features=32,
        narrow_operands=False,
    ),
    "gpu": replace(H200, name="gpu", kernel_rate=0),
    "gpu:a100": _gpu("gpu:a100", 156e12, 312e12, 19.5e12, 2.039e12, 85e9),
    "gpu:h100": _gpu("gpu:h100", 494.7e12, 989.4e12, 66.9e12, 3.35e12, 85e9, kernel_rate=0.57),
    "gpu:h200": H200,
    "gpu:b200": _gpu("gpu:b200", 1100e12, 2250e12, 75e12, 7.7e12, 191e9),
    "tpu:v3": _tpu("v3", 123e12, 0.9e12),
    "tpu:v4": _tpu("v4", 275e12, 1.228e12),
    "tpu:v5e": _tpu("v5e", 197e12, 0.819e12, "mosaic"),
    "tpu:v5p": _tpu("v5p", 459e12, 2.765e12, "mosaic"),
    "tpu:v6e": _tpu("v6e", 918e12, 1.64e12, "mosaic"),
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
    "NVIDIA A100-SXM4-80GB": "gpu:a100",
    "NVIDIA H100 80GB HBM3": "gpu:h100",
    "NVIDIA H200": "gpu:h200",
    "NVIDIA B200": "gpu:b200",
}


def roofline(target: str | None = None) -> Roofline:
    """The device of a target: 'cpu', 'gpu', 'tpu', 'tpu:v5e:2x4', 'gpu:h200'; None: JAX's default.

    Raises ValueError for any other name.

    >>> roofline("tpu:v5e:2x4").name
    'tpu:v5e'
    """
    name = row_of(jax.devices()[0]) if target is None else ":".join(target.split(":")[:2])
    name = "tpu:v5e" if name == "tpu" else name
    if name not in ROOFLINES:
        raise ValueError(f"there is no target {target!r}; there are {', '.join(ROOFLINES)}")
    row = ROOFLINES[name]
    if target is None and row.kernels == "triton" and not runs_triton(jax.devices()[0]):
        row = replace(row, kernels=None)
    # A module with a kernel is for one device, and that is to be named: XLA splits no kernel.
    return row if target and _devices_of(target) == 1 else replace(row, kernel_rate=0)


def _devices_of(target: str) -> int:
    """How many there are, by the topology that a target's name may end in."""
    return math.prod(int(size) for part in target.split(":")[2:] for size in part.split("x"))


def runs_triton(device: Any) -> bool:
    """Whether a GPU is one that Triton's kernels run on: NVIDIA's from Ampere on."""
    major = str(getattr(device, "compute_capability", "")).split(".")[0]
    return major.isdigit() and int(major) >= 8


def row_of(device: Any) -> str:
    """The name of a JAX device's row in the table."""
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(device.platform, str(device.platform))
    return DEVICE_KINDS.get(device.device_kind, platform)


# Those of `choice.WAYS`, for editors.
Way = Literal[
    "auto", "square", "segments", "ghost", "project", "kronecker", "fused", "lift", "loop"
]


# What some of these are, for those who check no types.
KINDS: dict[str, tuple[Any, str]] = {
    "reuse_gradient": (bool | None, "True, False or None"),
    "autotune": (bool, "True or False"),
    "target": (str | None, "a name, such as 'tpu:v5e', or None"),
}


class PlanningOptions(TypedDict, total=False):
    """The keywords of `PlanningChoices`."""

    strategy: Way
    memory_budget: int | None
    target: str | None
    reuse_gradient: bool | None
    shards: int | None
    autotune: bool


@dataclass(frozen=True)
class PlanningChoices(Limits):
    """How statistics are to be computed; none of it changes what they are.

    `strategy`: one of `choice.WAYS`, as `pipeline.check_planning` sees to. `memory_budget`: bytes
    of temporaries that the statistics of one gradient may take; by default what suits the target.
    `target`: the device to plan and lower for, as in `hlo_surgery.requests.options`; by default
    JAX's own. `reuse_gradient`: take gradients from the tensors that hold each example's (True), or
    leave the module's own ops and bits (False); by default where that is cheaper. `shards`: over
    how many devices the examples lie; a loop over them then goes over each device's own. By default
    what the arguments and the mesh in use tell, else 1. `autotune`: whether strategies are measured
    by a function's first call. Raises ValueError for wrong values.
    """

    strategy: Way = "auto"
    target: str | None = None
    autotune: bool = False

    def __post_init__(self) -> None:
        if self.memory_budget is not None:
            what = "a positive number of bytes, such as 64_000_000"
            positive_integer("memory_budget", self.memory_budget, what)
        if self.shards is not None:
            what = "the number of devices that the examples lie on"
            positive_integer("shards", self.shards, what)
        for name, (kind, what) in KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} is {getattr(self, name)!r}; it is {what}")
        if self.autotune and self.strategy != "auto":
            raise ValueError(
                f"autotune=True chooses the strategy, and strategy={self.strategy!r} does; give one"
            )
        _ = self.device

    @property
    def platform(self) -> str | None:
        """What the target is called where JAX lowers for it; None for JAX's default."""
        if self.target is None:
            return None
        return {"cpu": "cpu", "gpu": "cuda"}.get(self.device.name.split(":")[0], "tpu")

    @property
    def device(self) -> Roofline:
        """What the target computes and moves."""
        return roofline(self.target)


def positive_integer(name: str, count: Any, what: str) -> int:
    """The number. Raises TypeError for what is no integer, ValueError for one below 1."""
    number = integer_of(count)
    if number is None:
        raise TypeError(f"{name} is {count!r}; it is an integer: {what}")
    if number < 1:
        raise ValueError(f"{name} is {count}; it is {what}, at least 1")
    return number
