"""Where to put the nonlinearity, by a dial: the square or sign of means of groups of m examples.

    python -m tools.experiments.paired.groups [--seeds 16] [--steps 1000] [--csv FILE]

On the synthetic problem, B = 16. With m = 1 it is MicroAdam or MicroSignSGD, with m = B Adam or
SignSGD, and nothing else differs. `DESIGN.md` says what is claimed of it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tools.experiments.intervals import interval
from tools.experiments.paired.claims import Difference, holm, paired
from tools.experiments.paired.records import MEASURED, Ran, Record, write_csv
from tools.experiments.paired.synthetic import SEARCHING, Runs
from tools.experiments.training.methods import METHODS

DIALLED = ("micro_adam", "micro_sign_sgd")
GROUPS = (1, 4, 16)
CSV = MEASURED / "groups.csv"
Losses = dict[tuple[str, int], list[float]]
"""By method and m, seed by seed."""


def found(records: Sequence[Record]) -> Losses:
    """The losses of the seeds that compare."""
    fresh = sorted((r for r in records if r.seed < SEARCHING), key=lambda record: record.seed)
    named = {(method, m): name(method, m) for method in DIALLED for m in GROUPS}
    losses = {key: [r.loss for r in fresh if r.method == one] for key, one in named.items()}
    return {key: each for key, each in losses.items() if each}


def name(method: str, m: int) -> str:
    """What the file calls a method with groups of m."""
    return f"{method}, m = {m}"


def less_than_one(losses: Losses) -> dict[tuple[str, int], Difference]:
    """Of each m its losses less those of m = 1, seed by seed."""
    return {
        (method, m): paired(each, losses[method, 1])
        for (method, m), each in losses.items()
        if m > 1
    }


def table(records: Sequence[Record]) -> str:
    """Markdown: each m beside m = 1."""
    losses = found(records)
    less = less_than_one(losses)
    told = holm({name(*key): each for key, each in less.items()})
    rates = {r.method: r.learning_rate for r in records if r.seed < SEARCHING}
    lines = [
        "| method | m | learning rate | excess loss | less that of m = 1 | told apart |",
        "|---|---|---|---|---|---|",
    ]
    for key, each in losses.items():
        beside = f"{less[key]} | {'yes' if told[name(*key)] else 'no'}" if key in less else " | "
        rate, title = rates[name(*key)], METHODS[key[0]].title
        lines.append(f"| {title} | {key[1]} | {rate:.3g} | {interval(each, 4)} | {beside} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains all runs and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--csv", type=Path, default=CSV)
    asked = parser.parse_args(arguments)
    made: list[Ran] = []
    for method in DIALLED:
        for m in GROUPS:
            runs = Runs(method, asked.steps, m)
            rate = runs.tuned()
            losses = [runs.loss(rate, seed) for seed in range(asked.seeds)]
            made += runs.runs
            print(f"{name(method, m)}: {interval(losses, 4)}", flush=True)
    write_csv(asked.csv, made)
    print(table([run.record for run in made]))


if __name__ == "__main__":
    main()
