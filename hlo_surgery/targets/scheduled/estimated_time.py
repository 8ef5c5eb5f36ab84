"""Estimated time: a scheduled program's cycles as the compiler for TPU estimates and writes them.

Instructions run one after another, a loop's body as often as it runs. Copies between main memory
and the chip's own go on meanwhile, one after another on one channel, and hold the program up only
where their end is waited for. What has no estimate counts as nothing, and is listed.
"""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hlo_surgery.targets.scheduled.executed_bytes import COPIES, FREE, copied, moved_bytes
from hlo_surgery.targets.scheduled.executed_collectives import COLLECTIVES
from hlo_surgery.targets.scheduled.known_scalars import Known, known_scalars
from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program
from hlo_surgery.targets.scheduled.shapes import Array
from hlo_surgery.targets.scheduled.trip_counts import entered, executed, summed

MAIN, CHIP = 0, 1
# Calls that compute nothing, and the ends of collectives, whose beginnings are listed.
FREE_CALLS = {"AllocateBuffer", "AsyncCollectiveDone", "ConcatBitcast"}
# What is listed by itself, and not by the fusion that it is a part of.
TELLING = (*COLLECTIVES, "scatter", "gather", "sort")


CyclesOf = Callable[[Instruction], float]


@dataclass
class Clock:
    """Cycles now, until when the copying channel is busy, and when each begun copy is done."""

    bytes_per_cycle: float
    cycles_of: CyclesOf
    now: float = 0.0
    busy_until: float = 0.0
    done: dict[str, float] = field(default_factory=dict[str, float])


def estimated_cycles(
    program: Program, bytes_per_cycle: float, cycles_of: CyclesOf | None = None
) -> float:
    """The cycles of one run; `bytes_per_cycle`: what main memory delivers.

    `cycles_of` tells an instruction's cycles, by default the compiler's own estimate.

    Raises ValueError where the trip count of a loop is unknown.

    >>> from hlo_surgery.targets.scheduled.program import parse
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
    clock = Clock(
        bytes_per_cycle, cycles_of or (lambda instruction: instruction.estimated_cycles or 0)
    )
    _run(program, program.entry, [None] * len(program.entry.parameters), clock)
    return max(clock.now, clock.busy_until)


def has_estimates(program: Program) -> bool:
    """Whether the compiler estimated any instruction."""
    return any(each.instruction.estimated_cycles is not None for each in executed(program))


def _run(
    program: Program, computation: Computation, arguments: Sequence[Known], clock: Clock
) -> None:
    scalars = known_scalars(program, computation, arguments)
    for each in computation.instructions:
        clock.now += clock.cycles_of(each)
        if each.opcode in COPIES:
            clock.busy_until = (
                max(clock.now, clock.busy_until)
                + moved_bytes(program, computation, each) / clock.bytes_per_cycle
            )
            clock.done[each.name] = clock.busy_until
        elif each.opcode.endswith("-done"):
            clock.now = max(clock.now, clock.done.get(each.operands[0], 0.0))
        elif each.opcode == "conditional":
            _run_slowest(program, each, scalars, clock)
        else:
            for inside, given, rounds in entered(program, each, scalars):
                _repeat(program, inside, given, rounds, clock)


def _repeat(
    program: Program,
    body: Computation,
    arguments: Sequence[Known],
    rounds: int | None,
    clock: Clock,
) -> None:
    """The first round finds the channel as before the loop; the others are like the second."""
    if rounds is None:
        raise ValueError(
            "the trip count of a loop depends on data, and so does the time of the program"
        )
    for _ in range(min(rounds, 1)):
        _run(program, body, arguments, clock)
    if rounds > 1:
        now, busy_until = clock.now, clock.busy_until
        _run(program, body, arguments, clock)
        clock.now += (rounds - 2) * (clock.now - now)
        clock.busy_until += (rounds - 2) * (clock.busy_until - busy_until)


def _run_slowest(
    program: Program, conditional: Instruction, scalars: dict[str, Known], clock: Clock
) -> None:
    """Of a conditional, the branch that takes longest."""
    clocks = list[Clock]()
    for inside, given, _ in entered(program, conditional, scalars):
        clocks.append(copy.deepcopy(clock))
        _run(program, inside, given, clocks[-1])
    slowest = max(clocks, key=lambda each: each.now)
    clock.now, clock.busy_until = slowest.now, slowest.busy_until


def without_estimate(program: Program) -> dict[str, int | None]:
    """What has no estimate, and its runs, None if unknown: by opcode, or custom call target."""
    lacking = (each for each in executed(program) if _lacks_estimate(program, each.instruction))
    return summed((_label(program, each.instruction), each.times) for each in lacking)


def _lacks_estimate(program: Program, instruction: Instruction) -> bool:
    opcode, shape = instruction.opcode, instruction.shape
    if opcode in COPIES:
        return {array.space for array in copied(instruction)} - {MAIN, CHIP} != set()
    if (
        instruction.estimated_cycles is not None
        or opcode in FREE
        or opcode.endswith(("-done", "-update"))
    ):
        return False
    # Scalars are computed beside everything else.
    scalar = isinstance(shape, Array) and not shape.dims
    return not scalar and not FREE_CALLS & {_target(each) for each in _parts(program, instruction)}


def _label(program: Program, instruction: Instruction) -> str:
    parts = _parts(program, instruction)
    kinds = {each.opcode.removesuffix("-start") for each in parts}
    telling = next((kind for kind in TELLING if kind in kinds), None)
    target = next(filter(None, map(_target, parts)), None)
    return telling or target or instruction.opcode.removesuffix("-start")


def _parts(program: Program, instruction: Instruction) -> tuple[Instruction, ...]:
    """What a fusion or an asynchronous call is made of; else the instruction itself."""
    called = instruction.called("calls") or (
        instruction.opcode == "call-start" and instruction.called("to_apply")
    )
    return program.computations[called].instructions if called else (instruction,)


def _target(instruction: Instruction) -> str | None:
    found = re.search(r'custom_call_target="([^"]*)"', instruction.text)
    return found[1] if found else None
