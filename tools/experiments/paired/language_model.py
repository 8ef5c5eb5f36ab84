"""The paper's optimizers on the small language model, by pairs: runs of one seed start alike and
see the same batches.

    python -m tools.experiments.paired.language_model [--csv FILE] [--contenders NAME ...]
        [--seeds 16] [--batch-size 16] [--workers 2]

`DESIGN.md` says what is run and what is claimed of it, and was written first. Runs that are in the
file are not run again.
"""

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tools.experiments.paired.records import MEASURED, Record
from tools.experiments.paired.variants import ALL, BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training.model import SIZES, Size

CSV = MEASURED / "language_model.csv"


Stages = Sequence[tuple[int, int, int]]
STAGES: Stages = ((0, 1, 4), (1, 1, 4), (3, 1, 16), (3, 2, 16))
"""How many tuning seeds, how far from the centre rates go, how many fresh seeds: each stage has the
runs of those before it, so that a set that is cut off has all contenders.
"""


def compare(
    runs: Runs,
    names: Sequence[str],
    seeds: int,
    batch_size: int = BATCH_SIZE,
    size: Size = SIZES["small"],
    stages: Stages = STAGES,
) -> None:
    """Tune each, then run each on the fresh seeds, a seed of all before the next: in stages, the
    last of which is the design's. Where a later one chooses another rate, the seeds run at that.
    """
    for tuning, reach, most in stages:
        rates = tuned(runs, names, TUNING[:tuning], reach, batch_size, size)
        fresh = itertools.product(range(min(seeds, most)), names)
        wanted = [Wanted(name, rates[name], seed, batch_size, size) for seed, name in fresh]
        runs.made(wanted, "seeds")


def tuned(
    runs: Runs, names: Sequence[str], seeds: Sequence[int], reach: int, batch_size: int, size: Size
) -> dict[str, float]:
    """Each one's best rate of those within so many of its centre, and of those beyond while the
    best is at an edge.
    """
    tried = {name: list(range(-reach, reach + 1)) for name in names}
    while True:
        rates = {name: [ALL[name].rate(i, batch_size) for i in tried[name]] for name in names}
        each = [(name, rate, seed) for seed in seeds for name in names for rate in rates[name]]
        records = runs.made([Wanted(*one, batch_size, size) for one in each], "tuning")
        best = best_rates(records, batch_size)
        edges = {name: _at_edge(rates[name].index(best[name]), tried[name]) for name in names}
        if not any(edges.values()):
            return best
        tried = {name: sorted(tried[name] + edges[name]) for name in names}


def _at_edge(best: int, tried: Sequence[int]) -> list[int]:
    """The number beyond the tried ones, if the best of them, by its place, is at an edge."""
    beyond = {0: tried[0] - 1, len(tried) - 1: tried[-1] + 1}
    return [beyond[best]] if best in beyond else []


def best_rates(records: Sequence[Record], batch_size: int = BATCH_SIZE) -> dict[str, float]:
    """By contender the rate of the lowest mean loss: over all tuning seeds where the inner three
    rates have run on them, before that over the first, before that the centre.
    """
    tuning = [r for r in records if r.seed in TUNING and r.batch_size == batch_size]
    return {name: _best(name, tuning, batch_size) for name in ALL}


def _best(name: str, tuning: Sequence[Record], batch_size: int) -> float:
    own = [record for record in tuning if record.method == name]
    inner = [ALL[name].rate(i, batch_size) for i in (-1, 0, 1)]
    for seeds in (TUNING, TUNING[:1]):
        means = _means(own, seeds)
        if all(rate in means for rate in inner):
            return min(means, key=lambda rate: means[rate])
    return inner[1]


def _means(records: Sequence[Record], seeds: Sequence[int]) -> dict[float, float]:
    """By rate the mean loss over these seeds, for the rates that have run on all of them."""
    losses = {(record.learning_rate, record.seed): record.loss for record in records}
    rates = sorted({rate for rate, _ in losses})
    whole = [rate for rate in rates if all((rate, seed) in losses for seed in seeds)]
    return {rate: float(np.mean([losses[rate, seed] for seed in seeds])) for rate in whole}


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs that are not there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=CSV, help="all runs, a line each")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--size", choices=("small", "tiny"), default="small")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(arguments)
    runs = Runs(asked.csv, asked.workers)
    compare(runs, asked.contenders, asked.seeds, asked.batch_size, SIZES[asked.size])


if __name__ == "__main__":
    main()
