"""Rooflines: what a device can compute and move in a second; what planning weighs FLOPs against bytes with."""

from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Roofline:
    """A device: dense FLOP/s in its fastest matrix type, bytes/s of its memory, and the bytes of that memory.

    `fuses_lifted`: whether XLA reduces over the examples within the batched contraction that makes their gradients, so
    that those never reach memory. `step_seconds`: what a step of a loop costs beside its work.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    step_seconds: float = 2e-6
    fuses_lifted: bool = False

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on a computation is bound by arithmetic."""
        return self.flops / self.bandwidth

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so many FLOPs and bytes."""
        return max(flops / self.flops, moved / self.bandwidth)


# Makers' data sheets, per chip; for v3 too, whose chip is two devices. CPU: two cores, measured with a float32 matmul
# of 2048 and a copy of 1 GB.
ROOFLINES = {
    "cpu": Roofline("cpu", 450e9, 10e9, 16e9),
    "gpu": Roofline("gpu", 494e12, 4.8e12, 141e9, step_seconds=10e-6),
    "tpu:v3": Roofline("tpu:v3", 123e12, 0.9e12, 32e9, fuses_lifted=True),
    "tpu:v4": Roofline("tpu:v4", 275e12, 1.228e12, 32e9, fuses_lifted=True),
    "tpu:v5e": Roofline("tpu:v5e", 197e12, 0.819e12, 16e9, fuses_lifted=True),
    "tpu:v5p": Roofline("tpu:v5p", 459e12, 2.765e12, 95e9, fuses_lifted=True),
    "tpu:v6e": Roofline("tpu:v6e", 918e12, 1.64e12, 32e9, fuses_lifted=True),
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
    """The device that a target names: 'cpu', 'gpu', 'tpu', 'tpu:v5e', 'tpu:v5e:2x4'; None is JAX's default device.

    Raises ValueError for any other name.

    >>> roofline("tpu:v5e:2x4").name
    'tpu:v5e'
    """
    name = _default() if target is None else ":".join(target.split(":")[:2])
    name = "tpu:v5e" if name == "tpu" else name
    if name not in ROOFLINES:
        raise ValueError(f"there is no target {target!r}; there are {', '.join(ROOFLINES)}")
    return ROOFLINES[name]


def _default() -> str:
    device = jax.devices()[0]
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(device.platform, str(device.platform))
    return DEVICE_KINDS.get(device.device_kind, platform)
