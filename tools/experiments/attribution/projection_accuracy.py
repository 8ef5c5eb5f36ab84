"""How near scores of projected gradients come to the exact ones, by how much is kept of each.

    python -m tools.experiments.attribution.projection_accuracy [--seeds 5] [--queries 20]

Each seed draws the digits to train on, the queries, the network's start and the projections' signs.
A score is the inner product of a training example's gradient with a query's, at the end of
training; a query's correlation is Pearson's, over all training examples.
"""

import argparse
from typing import Any

import jax
import numpy as np

import hlo_surgery as hs
from tools.experiments.attribution.digits import TRAINED, digits, last, loss, trained
from tools.experiments.intervals import interval

KEPT = (4, 8, 16, 32)
KINDS: dict[str, dict[str, Any]] = {
    "projected(k)": {},
    'per="global"': {"per": "global"},
    'kind="dense"': {"kind": "dense"},
    'kind="dense", per="global"': {"kind": "dense", "per": "global"},
}


def flat(rows: Any) -> np.ndarray:
    """[N, numbers]: all that is kept of each example."""
    return np.concatenate([np.reshape(x, (len(x), -1)) for x in jax.tree.leaves(rows)], axis=1)


def correlations(exact: np.ndarray, found: np.ndarray) -> np.ndarray:
    """[Q]: of two tables of scores, [Q, N]."""
    return np.array([np.corrcoef(pair)[0, 1] for pair in zip(exact, found, strict=True)])


def accuracies(seed: int, count: int) -> dict[tuple[str, int], tuple[int, float]]:
    """By kind and k: the numbers kept of an example, and the mean correlation over queries."""
    split = digits(seed)
    params = last(trained(split.train, seed))
    both = zip(split.train, (part[:count] for part in split.rest), strict=True)
    x, y = (np.concatenate(pair) for pair in both)
    asked: dict[str, Any] = {
        f"{kind} {k}": hs.projected(k, seed, **how) for kind, how in KINDS.items() for k in KEPT
    }
    asked["exact"] = hs.per_example()
    f = jax.jit(hs.grad(loss, batch_argnums=(1, 2), statistics=asked, strategy="lift"))
    rows = {name: flat(found) for name, found in f(params, x, y)[1].items()}
    scores = {name: each[TRAINED:] @ each[:TRAINED].T for name, each in rows.items()}
    accuracy = {
        name: (rows[name].shape[1], correlations(scores["exact"], found).mean())
        for name, found in scores.items()
    }
    return {(kind, k): accuracy[f"{kind} {k}"] for kind in KINDS for k in KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=20)
    options = parser.parse_args()
    found = [accuracies(seed, options.queries) for seed in range(options.seeds)]
    print(f"{options.seeds} seeds of {options.queries} queries\n")
    print(f"| k | {' | '.join(f'`{kind}`' for kind in KINDS)} |")
    print("|---" * (len(KINDS) + 1) + "|")
    for k in KEPT:
        cells = [
            f"{interval([row[kind, k][1] for row in found], 2)} ({found[0][kind, k][0]})"
            for kind in KINDS
        ]
        print(f"| {k} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
