"""Executed collectives: how often a scheduled program runs each kind of communication between devices."""

import re
from collections import Counter

from hlo_surgery.scheduled.program import Program
from hlo_surgery.scheduled.trip_counts import executed

COLLECTIVES = (
    *("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute"),
    *("ragged-all-to-all", "reduce-scatter"),
)


def collectives(program: Program) -> dict[str, int]:
    """The runs of each kind. One that is spread over several fusions, as on TPU, is known by its channel."""
    times = dict[tuple[str, str], int]()
    for run in executed(program):
        called = run.instruction.called("calls")
        for each in program.computations[called].instructions if called else (run.instruction,):
            kind = each.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                channel = re.search(r"channel_id=(\d+)", each.text)
                times[kind, channel[1] if channel else each.name] = run.times
    counts = Counter[str]()
    for (kind, _), runs in times.items():
        counts[kind] += runs
    return dict(sorted(counts.items()))
