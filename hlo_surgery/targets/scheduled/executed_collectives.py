"""Executed collectives: how often a scheduled program runs each communication between devices."""

import re

from hlo_surgery.targets.scheduled.program import Program
from hlo_surgery.targets.scheduled.trip_counts import executed, summed

COLLECTIVES = (
    *("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
)


def collectives(program: Program) -> dict[str, int | None]:
    """The runs of each kind, None if unknown.

    One that is spread over several fusions, as on TPU, is known by its channel.
    """
    times = dict[tuple[str, str], int | None]()
    for run in executed(program):
        called = run.instruction.called("calls")
        for each in program.computations[called].instructions if called else (run.instruction,):
            kind = each.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                channel = re.search(r"channel_id=(\d+)", each.text)
                times[kind, channel[1] if channel else each.name] = run.times
    return dict(sorted(summed((kind, runs) for (kind, _), runs in times.items()).items()))
