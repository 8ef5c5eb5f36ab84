"""Runs that two kinds of processors made: how far apart one run ends, and the claims' differences.

Where sums are ordered otherwise a run ends elsewhere, as one of another seed would. Claims are of
differences, which should be the same.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tools.experiments.intervals import difference
from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS
from tools.experiments.paired.found import CLAIMS, compared, converged, pairs
from tools.experiments.paired.records import Record

Key = tuple[str, float, int]


def table(kept: Sequence[Record], other: Sequence[Record]) -> str:
    """By contender how far the others' losses are off, and by claim the difference in either, of
    the runs that both have.
    """
    here, there = _by_key(kept), _by_key(other)
    common = [key for key in here if key in there]
    lines = ["| contender | runs | other less kept |", "|---|---|---|"]
    for name in CONTENDERS:
        off = [there[key].loss - here[key].loss for key in common if key[0] == name]
        if len(off) > 1:
            lines.append(f"| {CONTENDERS[name].title} | {len(off)} | {difference(off)} |")
    lines += ["", "| less | | seeds | kept | other |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *_claims([here[key] for key in common], there)])


def _claims(kept: Sequence[Record], there: Mapping[Key, Record]) -> list[str]:
    found, lines = compared(kept), list[str]()
    for ours, theirs in CLAIMS:
        both = converged(pairs(found, ours, theirs))
        if len(both) > 1:
            again = [(there[_key(a)], there[_key(b)]) for a, b in both]
            said = f"{CONTENDERS[ours].title} | {CONTENDERS[theirs].title} | {len(both)}"
            lines.append(f"| {said} | {_mean(both)} | {_mean(again)} |")
    return lines


def _mean(both: Sequence[tuple[Record, Record]]) -> str:
    return f"{np.mean([ours.loss - theirs.loss for ours, theirs in both]):+.4f}"


def _by_key(records: Sequence[Record]) -> dict[Key, Record]:
    return {_key(record): record for record in records if record.batch_size == BATCH_SIZE}


def _key(record: Record) -> Key:
    return record.method, record.learning_rate, record.seed
