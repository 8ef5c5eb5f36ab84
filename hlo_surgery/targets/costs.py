"""Costs: what a compiled module takes of a target's memory and time, from its scheduled HLO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.stages import Compiled

from hlo_surgery.module import Source
from hlo_surgery.requests.options import roofline
from hlo_surgery.targets.executed import flops, moved_bytes
from hlo_surgery.targets.live_memory import Step, staircase
from hlo_surgery.targets.program import parse
from hlo_surgery.targets.target import Target, compile_for, find_target
from hlo_surgery.targets.times import (
    collectives,
    estimated_cycles,
    is_kernel,
    seconds_at_peak,
    without_estimate,
)
from hlo_surgery.targets.trip_counts import Counts, Executed, executed

# Cycles a second: peak FLOP/s over those of a cycle, 128 x 128 (v6e: 256 x 256) multiplications in
# each matrix unit.
CLOCKS = {
    "tpu:v3": 0.94e9,
    "tpu:v4": 1.05e9,
    "tpu:v5e": 1.5e9,
    "tpu:v5p": 1.75e9,
    "tpu:v6e": 1.75e9,
}


@dataclass(frozen=True)
class Cost:
    """What one device holds, computes and moves when a compiled module runs once.

    Memory is what XLA plans: arguments, outputs and temporaries, less what outputs take over from
    arguments (`alias`). The staircase is what is live at each instruction. FLOPs, and bytes to and
    from main memory, are counted in the scheduled HLO, loops as often as they run.
    `roofline_seconds` is what FLOPs or bytes alone would take at the device's peak rates; on a GPU
    kernel by kernel, contractions on tensor cores and the rest on CUDA cores (`kernel_times`), and
    `kernels` is how many are launched, whose time is not known; None elsewhere. The
    estimates are the compiler's own, with the waiting for copies; None for a target where it gives
    none. `without_estimate` lists what counts as no time in them, `collectives` what runs between
    devices, both with the number of runs. Where there are `unknown_loops`, whose trip count depends
    on data or is too large to be run, FLOPs, bytes and times are None, and so are the runs within
    those loops.
    """

    target: str
    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    flops: int | None
    bytes_accessed: int | None
    roofline_seconds: float | None
    estimated_cycles: float | None
    estimated_seconds: float | None
    without_estimate: Counts
    unknown_loops: int
    collectives: Counts
    staircase: tuple[Step, ...]
    kernels: int | None = None


def cost(
    module: Source,
    target: str | Target | None = None,
    in_shardings: Sequence[jax.sharding.Sharding] | None = None,
) -> Cost:
    """Compile a module as `compile_for` does, and tell what it costs.

    >>> source = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {"
    >>> source += " %y = stablehlo.negate %x : tensor<3xf32> return %y : tensor<3xf32> }"
    >>> cost(source, "cpu").flops
    3
    """
    compiled = compile_for(module, target, in_shardings)
    return cost_of(compiled.executable, compiled.target)


def cost_of(executable: Compiled, target: str | Target | None = None) -> Cost:
    """What a compiled function costs, `jax.jit(f).lower(...).compile()`, and for which target.

    >>> x = jax.ShapeDtypeStruct((3,), "float32")
    >>> cost_of(jax.jit(lambda x: x + 1).lower(x).compile(), "cpu").argument_bytes
    12
    """
    if not isinstance(executable, Compiled):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"cost_of takes a compiled function, not {type(executable).__name__}; pass "
            "jax.jit(f).lower(...).compile()"
        )
    target = target if isinstance(target, Target) else find_target(target)
    program, memory = parse(executable.as_text() or ""), cast(Any, executable.memory_analysis())
    device, runs, steps = roofline(target.kind), list(executed(program)), tuple(staircase(program))
    unknown = sum(run.unknown for run in runs)
    computed, moved = (None, None) if unknown else _work(runs)
    clock = CLOCKS.get(target.kind)
    if all(run.instruction.estimated_cycles is None for run in runs):
        clock = None
    # Devices that share a chip share its memory's bandwidth.
    rate = device.bandwidth / target.devices_per_chip / clock if clock else None
    cycles = estimated_cycles(program, rate) if rate and not unknown else None
    seconds, launched = None, None
    if computed is not None and moved is not None:
        seconds = device.seconds(computed, moved) * target.devices_per_chip
        if target.kind.startswith("gpu"):
            # Its kernels wait for each other, and so for the slower of its units each time.
            seconds = seconds_at_peak(program, device)
            launched = sum(run.times or 0 for run in runs if is_kernel(run.instruction))
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = _peak(memory, kept, steps, target)
    return Cost(
        target=target.name,
        peak_bytes=peak,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temporary_bytes=peak - kept,
        flops=computed,
        bytes_accessed=moved,
        roofline_seconds=seconds,
        estimated_cycles=cycles,
        estimated_seconds=cycles / clock if cycles is not None and clock else None,
        without_estimate=without_estimate(runs) if clock else {},
        unknown_loops=unknown,
        collectives=collectives(runs),
        staircase=steps,
        kernels=launched,
    )


def _peak(memory: Any, kept: int, steps: Sequence[Step], target: Target) -> int:
    """On TPU the parts that XLA gives do not add up to its total, which is what counts.

    Before jaxlib 0.12 it gives none: temporaries may then count a gap twice, and the peak the
    chip's own memory too.
    """
    together = kept + memory.temp_size_in_bytes
    if not target.kind.startswith("tpu"):
        return together
    least = max(step.bytes for step in steps)
    return getattr(memory, "total_allocation_bytes", 0) or max(
        least, min(together, memory.peak_memory_in_bytes)
    )


def _work(runs: Sequence[Executed]) -> tuple[int, int]:
    """FLOPs, and bytes to and from main memory, where all trip counts are known."""
    each = [(run.times or 0, run.instruction) for run in runs]
    computed, moved = (sum(n * of(one) for n, one in each) for of in (flops, moved_bytes))
    return computed, moved
