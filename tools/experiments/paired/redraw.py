"""Tables and figures of the paired runs, from their CSV files alone.

python -m tools.experiments.paired.redraw [--csv FILE] [--out FOLDER]
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.intervals import half_width, interval
from tools.experiments.paired.claims import Difference, holm, paired
from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.language_model import CSV, best_rates
from tools.experiments.paired.records import VERSIONS, Record, read_csv

CLAIMS = (
    ("sign_sgd", "sign_ema"),
    ("micro_sign_sgd", "sign_sgd"),
    ("micro_adam", "adam"),
    ("micro_adam_var", "micro_adam"),
    ("micro_adam, clipped", "adam, clipped"),
    ("micro_adam_var, clipped", "micro_adam, clipped"),
    ("micro_adam_msq, clipped", "adam, clipped"),
    ("adam, clipped", "adam"),
    ("micro_adam, clipped", "micro_adam"),
)
"""Of `DESIGN.md`, in its order: the first less the second."""
COMMAND = "python -m tools.experiments.paired.language_model"
BySeed = Mapping[int, Record]


def compared(records: Sequence[Record]) -> dict[str, BySeed]:
    """By contender the runs of fresh seeds at the rate that tuning chose, by seed."""
    rates = best_rates(records)
    usual = [record for record in records if record.batch_size == BATCH_SIZE]
    fresh = [r for r in usual if r.seed not in TUNING and r.learning_rate == rates.get(r.method)]
    return {
        name: {record.seed: record for record in fresh if record.method == name}
        for name in CONTENDERS
        if any(record.method == name for record in fresh)
    }


def pairs(found: Mapping[str, BySeed], ours: str, theirs: str) -> list[tuple[Record, Record]]:
    """The runs of two contenders, of the seeds that both have."""
    common = sorted(found.get(ours, {}).keys() & found.get(theirs, {}).keys())
    return [(found[ours][seed], found[theirs][seed]) for seed in common]


def tuning_table(records: Sequence[Record]) -> str:
    """Mean held-out losses of the tuning seeds, by contender and rate."""
    lines = ["| contender | learning rate: mean loss of the tuning seeds |", "|---|---|"]
    for name in CONTENDERS:
        own = [r for r in records if r.method == name and r.seed in TUNING]
        rates = sorted({r.learning_rate for r in own})
        means = [np.mean([r.loss for r in own if r.learning_rate == rate]) for rate in rates]
        said = ", ".join(f"{rate:.3g}: {mean:.3f}" for rate, mean in zip(rates, means, strict=True))
        lines += [f"| {name} | {said} |"] if own else []
    return "\n".join(lines)


def contenders_table(found: Mapping[str, BySeed]) -> str:
    """Each contender's rate and loss over its fresh seeds."""
    lines = ["| contender | learning rate | seeds | held-out loss |", "|---|---|---|---|"]
    for name, runs in found.items():
        losses = [run.loss for run in runs.values()]
        rate = next(iter(runs.values())).learning_rate
        said = interval(losses) if len(losses) > 1 else f"{losses[0]:.3f}"
        lines.append(f"| {name} | {rate:.3g} | {len(losses)} | {said} |")
    return "\n".join(lines)


def claims_table(found: Mapping[str, BySeed]) -> str:
    """The differences that are claimed of, and whether each is told from none."""
    differences: dict[tuple[str, str], Difference] = {}
    numbers: dict[tuple[str, str], int] = {}
    for claim in CLAIMS:
        both = pairs(found, *claim)
        if len(both) > 1:
            numbers[claim] = len(both)
            differences[claim] = paired([a.loss for a, _ in both], [b.loss for _, b in both])
    told = holm({f"{a} - {b}": found for (a, b), found in differences.items()}, len(CLAIMS))
    lines = ["| less | | seeds | difference | told apart |", "|---|---|---|---|---|"]
    for (a, b), difference in differences.items():
        answer = "yes" if told[f"{a} - {b}"] else "no"
        lines.append(f"| {a} | {b} | {numbers[a, b]} | {difference} | {answer} |")
    return "\n".join(lines)


def draw(found: Mapping[str, BySeed], file: Path) -> None:
    """For each claim the difference of training losses along the run: mean, and 95 % band."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, places = plt.subplots(3, 3, figsize=(12, 9), sharex=True, layout="constrained")
    for claim, place in zip(CLAIMS, places.flat, strict=True):
        both = pairs(found, *claim)
        if len(both) > 1:
            _draw_difference(place, both)
        place.set_title(f"{claim[0]}\nless {claim[1]}", fontsize="small")
        place.axhline(0, color="black", linewidth=0.6)
    figure.supxlabel("share of the run")
    figure.supylabel("difference of training losses, nats a byte")
    figure.savefig(file)
    plt.close(figure)


def _draw_difference(place: Any, both: Sequence[tuple[Record, Record]]) -> None:
    each = np.array([np.subtract(a.curve, b.curve) for a, b in both])
    middle, half = each.mean(0), np.array([half_width(column) for column in each.T])
    share = (np.arange(len(middle)) + 0.5) / len(middle)
    place.plot(share, middle, linewidth=1)
    place.fill_between(share, middle - half, middle + half, alpha=0.3, linewidth=0)
    # The first steps, where all begin, would hide the rest.
    settled = np.abs(middle[8:]) + half[8:]
    limit = 1.2 * float(np.nanmax(settled, initial=1e-3))
    place.set_ylim(-limit, limit)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables, and draws the figure beside the other findings'."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--csv", type=Path, default=CSV)
    parser.add_argument("--out", type=Path, default=CSV.parent.parent / "figures")
    asked = parser.parse_args(arguments)
    runs = read_csv(asked.csv)
    records = [run.record for run in runs]
    if not records:
        parser.error(f"{asked.csv} has no runs; make them with {COMMAND}")
    found = compared(records)
    for versions in sorted({run.versions for run in runs}):
        print(", ".join(map(" ".join, zip(VERSIONS, versions, strict=True))))
    print(tuning_table(records), contenders_table(found), claims_table(found), sep="\n\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    draw(found, asked.out / "paired_differences.svg")


if __name__ == "__main__":
    main()
