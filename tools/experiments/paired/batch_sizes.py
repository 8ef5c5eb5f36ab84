"""Loss curves over batch sizes, at rates by each method's rule: lr ~ sqrt(B) or lr ~ B.

    python -m tools.experiments.paired.batch_sizes [--csv FILE] [--seeds 3] [--factor 0.25]
        [--workers 2]

From the rates that tuning chose at B = 16: the runs of `language_model` come first.
"""

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import hlo_surgery.optimizers as ho
from tools.experiments.paired.language_model import CSV, best_rates
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training import model
from tools.experiments.training.methods import METHODS
from tools.experiments.training.model import Size

SIZES = (4, 8, 16, 32, 64)
SCALED = (
    "adam",
    "micro_adam",
    "micro_adam_msq, clipped",
    "micro_adam_var",
    "micro_adam, clipped",
    "micro_adam_var, clipped",
)


def scaled(name: str, rate: float, batch_size: int, factor: float = 1.0) -> float:
    """The rate by the contender's rule, from that of the usual batch size."""
    rule = METHODS[CONTENDERS[name].method].rule
    return factor * ho.batch_size_rule(rate, BATCH_SIZE, batch_size, rule)


def wanted(rates: dict[str, float], seeds: int, factor: float, of: Size) -> list[Wanted]:
    """Of these contenders, a seed of all before the next."""
    return [
        Wanted(name, scaled(name, rates[name], size, factor), seed, size, of)
        for seed, name, size in itertools.product(range(seeds), rates, SIZES)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs that are not there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=CSV, help="all runs, a line each")
    parser.add_argument("--contenders", nargs="+", choices=SCALED, default=list(SCALED))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--factor", type=float, default=1.0, help="of all learning rates")
    parser.add_argument("--size", choices=("small", "tiny"), default="small", help="of the model")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(arguments)
    runs = Runs(asked.csv, asked.workers)
    best, size = best_rates(runs.records), model.SIZES[asked.size]
    rates = {name: best[name] for name in asked.contenders}
    runs.made(wanted(rates, asked.seeds, asked.factor, size), "batch sizes")


if __name__ == "__main__":
    main()
