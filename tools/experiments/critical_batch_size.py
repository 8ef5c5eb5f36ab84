"""The gradient noise scale of each kind of layer along training: how large a batch it could use.

python -m tools.experiments.critical_batch_size [--size small] [--seeds 4] [--steps 2240]

Trains with Adam at the experiments' settings; both parts of the noise scale are averaged over a
hundred steps, by parameter, and added up over the parameters of a kind. Prints a table in Markdown:
examples (sequences), the mean over the seeds with a 95 % interval by Student's t.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from hlo_surgery.estimators import NoiseScale
from tools.experiments.intervals import interval
from tools.experiments.runs import setting
from tools.experiments.training import model
from tools.experiments.training.data import Text
from tools.experiments.training.methods import RATES, Run

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
    parser.add_argument("--steps", type=int, help="of each run; else as many as the size has")


def scales(run: Run, text: Text, steps: int) -> np.ndarray:
    """[share of the run, kind]: noise scales of each kind of layer, and of all in the end."""
    optimizer = optax.chain(ho.track_noise_scale(DECAY, "parameter"), run.optimizer())
    params = model.init(run.size, run.seed)
    state, step = optimizer.init(params), hs.train_step(model.loss, optimizer)
    marks, found = {round(share * steps) for share in SHARES}, list[list[float]]()
    for number in range(1, steps + 1):
        params, state, _ = step(params, state, text.batch(number - 1, run.batch_size, run.seed))
        if number in marks:
            found.append(by_kind(ho.noise_scale(state)))
    return np.array(found)


def by_kind(each: Any) -> list[float]:
    """Of the parts of every parameter, the noise scale of each kind, and of all."""
    leaves = jax.tree.leaves_with_path(each, is_leaf=lambda x: isinstance(x, NoiseScale))
    named = [(path[-1].key, parts) for path, parts in leaves]
    kinds = [[parts for name, parts in named if name in names] for names in KINDS.values()]
    return [_ratio(parts) for parts in (*kinds, [parts for _, parts in named])]


def _ratio(parts: Sequence[NoiseScale]) -> float:
    """Both parts add up over parameters."""
    return float(sum(p.variance for p in parts) / sum(p.squared_mean for p in parts))


def report(found: np.ndarray) -> None:
    """`found`: [seed, share, kind]."""
    print(
        "| of the run | " + " | ".join([*KINDS, "all"]) + " |" + "\n|" + "---|" * (len(KINDS) + 2)
    )
    for number, share in enumerate(SHARES):
        cells = [interval(found[:, number, kind], 0) for kind in range(found.shape[2])]
        print(f"| {share:.0%} | " + " | ".join(cells) + " |")


def main() -> None:
    where, options = setting(__doc__, seeds=4, extra=add_options)
    rate = RATES[where.size.name]["adam"]
    found: list[np.ndarray] = []
    for seed in range(where.seeds):
        run = Run(where.size, "adam", rate, where.batch_size, seed)
        found.append(scales(run, where.text, options.steps or run.steps))
        print(f"seed {seed}: all {', '.join(f'{x:.0f}' for x in found[-1][:, -1])}", flush=True)
    report(np.array(found))


if __name__ == "__main__":
    main()
