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
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.records import Record
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training.model import SIZES, Size

CSV = Path(__file__).parent / "language_model.csv"


def compare(
    runs: Runs,
    names: Sequence[str],
    seeds: int,
    batch_size: int = BATCH_SIZE,
    size: Size = SIZES["small"],
) -> None:
    """Tune each, then run each on every fresh seed; a seed of all is begun before the next.

    The outer two of the five rates come last: they confirm what the inner three chose, or, where
    they do not, the seeds are run at what all five choose.
    """
    for reach in (1, 2):
        rates = tuned(runs, names, reach, batch_size, size)
        fresh = itertools.product(range(seeds), names)
        wanted = [Wanted(name, rates[name], seed, batch_size, size) for seed, name in fresh]
        runs.made(wanted, "seeds")


def tuned(
    runs: Runs, names: Sequence[str], reach: int, batch_size: int, size: Size
) -> dict[str, float]:
    """Each one's best rate of those within so many of its centre, and of those beyond while the
    best is at an edge.
    """
    tried = {name: list(range(-reach, reach + 1)) for name in names}
    while True:
        rates = {
            name: [CONTENDERS[name].rate(i, batch_size) for i in tried[name]] for name in names
        }
        each = [(name, rate, seed) for seed in TUNING for name in names for rate in rates[name]]
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
    """By contender the rate whose mean loss over the tuning seeds is lowest, of those that ran on
    all of them.
    """
    losses: dict[str, dict[float, list[float]]] = {}
    for record in records:
        if record.seed in TUNING and record.batch_size == batch_size:
            by_rate = losses.setdefault(record.method, {})
            by_rate.setdefault(record.learning_rate, []).append(record.loss)
    found = {name: _best(by_rate) for name, by_rate in losses.items()}
    return {name: rate for name, rate in found.items() if rate is not None}


def _best(by_rate: Mapping[float, Sequence[float]]) -> float | None:
    whole = {rate: np.mean(found) for rate, found in by_rate.items() if len(found) == len(TUNING)}
    return min(whole, key=lambda rate: whole[rate], default=None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs that are not there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=CSV, help="all runs, a line each")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(arguments)
    runs = Runs(asked.csv, asked.workers)
    compare(runs, asked.contenders, asked.seeds, asked.batch_size)


if __name__ == "__main__":
    main()
