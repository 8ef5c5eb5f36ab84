"""The gradient noise scale of each kind of layer along training: how large a batch it could use.

python -m tools.experiments.critical_batch_size [--size small] [--seeds 4] [--csv FILE]

Trains with Adam at the experiments' settings; both parts of the noise scale are averaged over a
hundred steps, by parameter, and added up over the parameters of a kind. Seeds that are in the file
are not run again; `tools.experiments.redraw` draws it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import optax

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from hlo_surgery.estimators import NoiseScale
from tools.experiments.paired.records import MEASURED, commit, rows_of, write_rows
from tools.experiments.runs import setting
from tools.experiments.training import model
from tools.experiments.training.data import Text
from tools.experiments.training.methods import RATES, Run

NAMES = ("seed", "share", "kind", "noise_scale", "commit")
DECAY = 0.99
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
KINDS = {
    "embedding": ("embedding", "positions"),
    "attention": ("query", "key", "value", "out"),
    "MLP": ("up", "down"),
    "norms": ("norm", "norm1", "norm2"),
    "head": ("head",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, default=MEASURED / "critical_batch_size.csv")


def scales(run: Run, text: Text) -> dict[float, list[float]]:
    """By share of the run: noise scales of each kind of layer, and of all in the end."""
    optimizer = optax.chain(ho.track_noise_scale(DECAY, "parameter"), run.optimizer())
    params = model.init(run.size, run.seed)
    state, step = optimizer.init(params), hs.train_step(model.loss, optimizer)
    marks, found = {round(share * run.steps): share for share in SHARES}, dict[float, list[float]]()
    for number in range(1, run.steps + 1):
        params, state, _ = step(params, state, text.batch(number - 1, run.batch_size, run.seed))
        if number in marks:
            found[marks[number]] = by_kind(ho.tracked_noise_scale(state))
    return found


def by_kind(each: Any) -> list[float]:
    """Of the parts of every parameter, the noise scale of each kind, and of all."""
    leaves = jax.tree.leaves_with_path(each, is_leaf=lambda x: isinstance(x, NoiseScale))
    named = [(path[-1].key, parts) for path, parts in leaves]
    kinds = [[parts for name, parts in named if name in names] for names in KINDS.values()]
    return [_ratio(parts) for parts in (*kinds, [parts for _, parts in named])]


def _ratio(parts: Sequence[NoiseScale]) -> float:
    """Both parts add up over parameters."""
    return float(sum(p.variance for p in parts) / sum(p.squared_mean for p in parts))


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the seeds that are not there."""
    where, options = setting(__doc__, seeds=4, extra=add_options, arguments=arguments)
    rate = RATES[where.size.name]["adam"]
    rows = [tuple(row.values()) for row in rows_of(options.csv)]
    done = {int(row[0]) for row in rows}
    for seed in sorted(set(range(where.seeds)) - done):
        found = scales(Run(where.size, "adam", rate, where.batch_size, seed), where.text)
        for share, each in found.items():
            named = zip((*KINDS, "all"), each, strict=True)
            rows += [(seed, share, kind, f"{scale:.6g}", commit()) for kind, scale in named]
        write_rows(options.csv, NAMES, rows)
        print(f"seed {seed}: all {', '.join(f'{each[-1]:.0f}' for each in found.values())}")


if __name__ == "__main__":
    main()
