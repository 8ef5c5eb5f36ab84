"""Wrong labels among as many of the first by each score, over seeds.

    python -m tools.experiments.mislabelled [--seeds 10] [--wrong 0.1]

Each seed draws which digits are trained on, which of these get a wrong label, and the network's
start. All scores are of the same trained networks, and ordered so that the most suspect come first.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import hlo_surgery as hs
from tools.experiments.attribution import methods
from tools.experiments.attribution.digits import (
    CHECKPOINTS,
    TRAINED,
    Examples,
    checkpoint,
    digits,
    last,
    loss,
    losses,
    trained,
)
from tools.experiments.intervals import interval

NORMS = jax.jit(hs.grad(loss, batch_argnums=(1, 2), statistics=hs.norms()))


def norms(model: Any, data: Examples) -> np.ndarray:
    return np.asarray(NORMS(model, *data)[1])


def over_checkpoints(score: Callable[..., Any], models: Any, data: Examples) -> np.ndarray:
    """The mean over checkpoints."""
    return np.mean([score(checkpoint(models, c), *data) for c in range(CHECKPOINTS)], 0)


def suspicion(models: Any, data: Examples, clean: Examples) -> dict[str, np.ndarray]:
    """How suspect each example is, [N], by score."""
    end = last(models)
    return {
        "loss": np.asarray(losses(end, *data)),
        "loss, mean of 4 checkpoints": over_checkpoints(losses, models, data),
        "gradient norm": norms(end, data),
        "TracIn on itself": over_checkpoints(
            lambda model, *data: norms(model, data) ** 2, models, data
        ),
        "TracIn on held-out": -methods.tracin(models, data, clean).mean(0),
        "LoGra on held-out": -methods.logra(end, data, clean).mean(0),
        "LoGra on itself": methods.logra_of_itself(end, data),
    }


def precisions(seed: int, share: float) -> dict[str, float]:
    """Of as many first as labels are wrong, how many are wrong."""
    split, rng = digits(seed), np.random.default_rng([2, seed])
    x, true = split.train
    wrong = np.zeros(TRAINED, bool)
    wrong[rng.choice(TRAINED, round(share * TRAINED), replace=False)] = True
    data = x, np.where(wrong, (true + rng.integers(1, 10, TRAINED)) % 10, true).astype(np.int32)
    found = suspicion(trained(data, seed), data, split.held_out)
    count = int(wrong.sum())
    return {name: wrong[np.argsort(-score)[:count]].mean() for name, score in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--wrong", type=float, default=0.1)
    options = parser.parse_args()
    rows = [precisions(seed, options.wrong) for seed in range(options.seeds)]
    print(f"{options.seeds} seeds, {options.wrong:.0%} of {TRAINED} labels are wrong\n")
    print("| score | wrong among as many first | beside the loss, same seeds |\n|---|---|---|")
    print(f"| chance | {options.wrong:.3f} | |")
    for name in rows[0]:
        beside = interval([row[name] - row["loss"] for row in rows]) if name != "loss" else ""
        print(f"| {name} | {interval([row[name] for row in rows])} | {beside} |")


if __name__ == "__main__":
    main()
