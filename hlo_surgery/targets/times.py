"""Times: a scheduled program's kernels at a GPU's peak rates, and cycles as the compiler for TPU
estimates them; and what runs between devices.

A kernel is what the scheduled program runs at once: a fusion, or a call of cuBLAS or cuDNN. Its
dots and convolutions run on tensor cores, at the rate of their operands' type, its other FLOPs on
CUDA cores, beside which memory is read and written: it takes as long as the longest of these.

Cycles: instructions run one after another, a loop's body as often as it runs. Copies between main
memory and the chip's own go on meanwhile, one after another on one channel, and hold the program up
only where their end is waited for. What has no estimate counts as nothing, and is listed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hlo_surgery.passes.strategies.gradient_costs import Roofline
from hlo_surgery.targets.executed import (
    COPIES,
    MAIN,
    call_target,
    copied,
    flops,
    is_fused_kernel,
    library,
    moved_bytes,
    moves_nothing,
)
from hlo_surgery.targets.program import Array, Instruction, Program, arrays
from hlo_surgery.targets.trip_counts import Block, Counts, Executed, entry, summed

COLLECTIVES = (
    *("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
)


def collectives(runs: Iterable[Executed]) -> Counts:
    """The runs of each kind, None if unknown.

    One that is spread over several fusions, as on TPU, is known by its channel.
    """
    times = dict[tuple[str, str], int | None]()
    for run in runs:
        for each in _parts(run.instruction):
            kind = each.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                times[kind, each.option("channel_id") or each.name] = run.times
    return dict(sorted(summed((kind, each) for (kind, _), each in times.items()).items()))


Branch = Callable[[Sequence[float]], float]


def is_kernel(instruction: Instruction) -> bool:
    """Whether it runs on the device by itself."""
    return not moves_nothing(instruction)


def seconds_at_peak(program: Program, device: Roofline, branch: Branch = max) -> float:
    """The least time of all kernels, one after the other; of a conditional that of the `branch`
    that takes longest, or least. Trip counts must be known.
    """

    def seconds(block: Block) -> float:
        total = 0.0
        for each, inside in block:
            if is_kernel(each):
                total += kernel_seconds(each, device)
            inner = [(rounds or 0) * seconds(own) for own, rounds in inside]
            total += branch(inner) if each.opcode == "conditional" else sum(inner)
        return total

    return seconds(entry(program))


def kernel_seconds(instruction: Instruction, device: Roofline) -> float:
    """The least time of one run."""
    vector, seconds = flops(instruction), 0.0
    for each in contractions(instruction):
        made = flops(each)
        vector -= made
        seconds += made / contraction_rate(each, device)
    moved = moved_bytes(instruction)
    return max(seconds, vector / device.vector_flops, moved / device.bandwidth)


def contractions(instruction: Instruction) -> Iterator[Instruction]:
    """What of a kernel is left to tensor cores."""
    if instruction.opcode == "fusion":
        for each in instruction.inside().instructions:
            yield from contractions(each)
    elif (
        instruction.opcode in ("dot", "convolution")
        or library(instruction)
        or is_fused_kernel(instruction)
    ):
        yield instruction


def contraction_rate(dot: Instruction, device: Roofline) -> float:
    """FLOP/s by the type of the operands, and by what is asked of float32: TF32 by default, three
    of them for "high", and none for "highest", which is left to the CUDA cores.
    """
    # A fused kernel's first operand is the examples' numbers; single positions it multiplies.
    is_fused = is_fused_kernel(dot)
    contracted = arrays(dot.operands[int(is_fused)].shape)[0]
    if contracted.dtype == "f64" or (is_fused and contracted.dims[1] == 1):
        return device.vector_flops
    if contracted.dtype in ("bf16", "f16"):
        return device.rate(narrow=True)
    asked = re.search(r'operand_precision(?:=\{|":\[")(\w+)', dot.text)
    precision = asked[1].lower() if asked else "default"
    if precision == "highest":
        return device.vector_flops
    return device.rate(narrow=False) / (3 if precision == "high" else 1)


CHIP = 1
# Calls that compute nothing, and the ends of collectives, whose beginnings are listed.
FREE_CALLS = {"AllocateBuffer", "AsyncCollectiveDone", "ConcatBitcast"}
# What is listed by itself, and not by the fusion that it is a part of.
TELLING = (*COLLECTIVES, "scatter", "gather", "sort")


CyclesOf = Callable[[Instruction], float]


def _estimated(instruction: Instruction) -> float:
    return instruction.estimated_cycles or 0


@dataclass
class Clock:
    """Cycles now, until when the copying channel is busy, and when each begun copy is done."""

    bytes_per_cycle: float
    cycles_of: CyclesOf
    now: float = 0.0
    busy_until: float = 0.0
    done: dict[Instruction, float] = field(default_factory=dict[Instruction, float])


def estimated_cycles(
    program: Program, bytes_per_cycle: float, cycles_of: CyclesOf = _estimated
) -> float:
    """The cycles of one run; `bytes_per_cycle`: what main memory delivers.

    `cycles_of` tells an instruction's cycles, by default the compiler's own estimate.

    Raises ValueError where the trip count of a loop is unknown.

    >>> from hlo_surgery.targets.program import parse
    >>> program = parse('''HloModule m, is_scheduled=true
    ... ENTRY %main (x: f32[512]) -> f32[512] {
    ...   %x = f32[512]{0} parameter(0)
    ...   %start = (f32[512]{0:S(1)}, f32[512]{0}, u32[]) copy-start(%x)
    ...   %y = f32[512]{0} negate(%x), backend_config={"estimated_cycles":"30"}
    ...   %z = f32[512]{0:S(1)} copy-done(%start)
    ...   ROOT %w = f32[512]{0} add(%y, %z), backend_config={"estimated_cycles":"5"}
    ... }''')
    >>> estimated_cycles(program, bytes_per_cycle=32)
    69.0
    """
    clock = _after(entry(program), Clock(bytes_per_cycle, cycles_of))
    return max(clock.now, clock.busy_until)


def _after(block: Block, before: Clock) -> Clock:
    """The clock once the computation has run; of a conditional, the branch that takes longest."""
    clock = replace(before, done=dict(before.done))
    for each, inside in block:
        clock.now += clock.cycles_of(each)
        if each.opcode in COPIES:
            copying = moved_bytes(each) / clock.bytes_per_cycle
            clock.busy_until = max(clock.now, clock.busy_until) + copying
            clock.done[each] = clock.busy_until
        elif each.opcode.endswith("-done"):
            clock.now = max(clock.now, clock.done.get(each.operands[0], 0.0))
        inner = [_repeated(*entered, clock) for entered in inside]
        clock = max(inner, key=lambda after: after.now, default=clock)
    return clock


def _repeated(body: Block, rounds: int | None, clock: Clock) -> Clock:
    """The first round finds the channel as before the loop; the others are like the second."""
    if rounds is None:
        raise ValueError("the trip count of a loop is unknown, and so is the time of the program")
    if rounds == 0:
        return clock
    first = _after(body, clock)
    if rounds == 1:
        return first
    second = _after(body, first)
    second.now += (rounds - 2) * (second.now - first.now)
    second.busy_until += (rounds - 2) * (second.busy_until - first.busy_until)
    return second


def without_estimate(runs: Iterable[Executed]) -> Counts:
    """What has no estimate, and its runs, None if unknown: by opcode, or custom call target."""
    lacking = (each for each in runs if _lacks_estimate(each.instruction))
    return summed((_label(each.instruction), each.times) for each in lacking)


def _lacks_estimate(instruction: Instruction) -> bool:
    shape = instruction.shape
    if instruction.opcode in COPIES:
        return not {array.space for array in copied(instruction)} <= {MAIN, CHIP}
    if instruction.estimated_cycles is not None or moves_nothing(instruction):
        return False
    # Scalars are computed beside everything else.
    scalar = isinstance(shape, Array) and not shape.dims
    return not scalar and not FREE_CALLS & set(map(call_target, _parts(instruction)))


def _label(instruction: Instruction) -> str:
    parts = _parts(instruction)
    kinds = {each.opcode.removesuffix("-start") for each in parts}
    telling = next((kind for kind in TELLING if kind in kinds), "")
    target = next(filter(None, map(call_target, parts)), "")
    return telling or target or instruction.opcode.removesuffix("-start")


def _parts(instruction: Instruction) -> tuple[Instruction, ...]:
    """What a fusion or an asynchronous call is made of; else the instruction itself."""
    calls = instruction.called() or instruction.opcode == "call-start"
    return instruction.inside().instructions if calls else (instruction,)
