"""One setting at a time: the update's bound, b2, clipping, decay, the proxy over tokens, groups,
B = 64, noise.

    python -m tools.experiments.paired.sweeps [--out FOLDER] [--only b2 ...] [--seeds 4]
        [--workers 2]

`DESIGN.md` says what is run and asked, and was written first; `variants.py` lists the contenders.
Runs that are in the file are not run again.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.experiments.paired.claims import BySeed, Difference, converged, holm, paired
from tools.experiments.paired.language_model import Stages, best_rates, compare
from tools.experiments.paired.records import MEASURED, Record
from tools.experiments.paired.variants import SWEEPS, TUNING, Sweep
from tools.experiments.paired.workers import Runs
from tools.experiments.training.model import SIZES, Size

STAGES: Stages = ((1, 1, 4),)
"""One tuning seed, three rates and those beyond an edge, and at most four fresh seeds."""
Place = tuple[str, str]
"""A line and a level."""


def make(runs: Runs, sweep: Sweep, seeds: int, size: Size) -> None:
    """The runs of a sweep that are not there."""
    wanted = list(dict.fromkeys(cell.run for cell in sweep.cells.values()))
    for batch_size in sorted({batch_size for _, batch_size in wanted}):
        names = [name for name, own in wanted if own == batch_size]
        compare(runs, names, seeds, batch_size, size, STAGES)


def found(records: Sequence[Record], sweep: Sweep) -> dict[Place, BySeed]:
    """By line and level the fresh seeds at the rate that was chosen; of those that have any."""
    fresh = [record for record in records if record.seed not in TUNING]
    rates = {size: best_rates(records, size) for size in {r.batch_size for r in fresh}}
    each: dict[Place, BySeed] = {}
    for place, (name, _, size) in sweep.cells.items():
        own = [r for r in fresh if (r.method, r.batch_size) == (name, size)]
        own = [r for r in own if r.learning_rate == rates[size][name]]
        if own:
            each[place] = {record.seed: record for record in own}
    return each


def against_usual(each: Mapping[Place, BySeed], sweep: Sweep) -> dict[Place, Difference]:
    """Each level less the usual one of its line."""
    return _known(
        {(line, level): _less(each, (line, level), (line, sweep.usual)) for line, level in each}
    )


def against_first(each: Mapping[Place, BySeed], sweep: Sweep) -> dict[Place, Difference]:
    """Each line less the first at the same level."""
    first = next(iter(sweep.lines))
    return _known(
        {(line, level): _less(each, (line, level), (first, level)) for line, level in each}
    )


def told(differences: Mapping[Place, Difference]) -> dict[Place, bool]:
    """By Holm, over all differences of one kind in a sweep."""
    answers = holm({" at ".join(place): one for place, one in differences.items()})
    return {place: answers[" at ".join(place)] for place in differences}


def _less(each: Mapping[Place, BySeed], ours: Place, theirs: Place) -> Difference | None:
    """Of held-out losses, seed by seed; None with fewer than two pairs that converged, or of what
    is one run.
    """
    a, b = each[ours], each.get(theirs, {})
    both = [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys()) if a[seed] is not b[seed]]
    kept = converged(both)
    if len(kept) < 2:
        return None
    return paired([run.loss for run, _ in kept], [run.loss for _, run in kept])


def _known(each: Mapping[Place, Difference | None]) -> dict[Place, Difference]:
    return {place: one for place, one in each.items() if one is not None}


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs that are not there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=MEASURED, help="the folder of the CSV files")
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--size", choices=("small", "tiny"), default="small", help="of the model")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(arguments)
    for name in asked.only:
        sweep = SWEEPS[name]
        runs = Runs(asked.out / f"{sweep.file}.csv", asked.workers)
        make(runs, sweep, asked.seeds, SIZES[asked.size])


if __name__ == "__main__":
    main()
