"""What a query's loss becomes without the training examples that each method scores highest.

    python -m tools.experiments.removal [--seeds 10] [--queries 20] [--removed 60]

Each seed draws the digits to train on, the queries, and the network's start. For every query and
method a network is trained from that start, on the same batches without the removed examples; the
change is that of the query's loss at the end of training, in nats, against the network that had
all. Random examples, and the digits of the query's label whose images are nearest, stand beside.
"""

import argparse
from typing import Any

import jax
import numpy as np

from tools.experiments.attribution import methods
from tools.experiments.attribution.digits import TRAINED, Examples, digits, last, losses, trained
from tools.experiments.intervals import interval

ENSEMBLE = 5
RUNS = 20
"""Trained at once."""


def nearest(data: Examples, queries: Examples) -> np.ndarray:
    """[Q, N]: cosines of images, and 1 more for the query's own label: no gradients."""
    x, q = (images / np.linalg.norm(images, axis=1, keepdims=True) for images, _ in (data, queries))
    return q @ x.T + (queries[1][:, None] == data[1])


def all_scores(data: Examples, queries: Examples, seed: int) -> dict[str, np.ndarray]:
    """[Q, N] by method; TRAK of networks from other starts."""
    models = trained(data, seed)
    others = [last(trained(data, 1000 + ENSEMBLE * seed + m)) for m in range(ENSEMBLE)]
    return {
        "TracIn": methods.tracin(models, data, queries),
        "LoGra": methods.logra(last(models), data, queries),
        "TRAK": methods.trak(others, data, queries),
        "nearest images": nearest(data, queries),
    }


def choices(scores: dict[str, np.ndarray], removed: int, rng: Any) -> dict[str, np.ndarray]:
    """Which examples go, [Q, removed], by what says so."""
    chosen = {f"{name}, highest": np.argsort(-x)[:, :removed] for name, x in scores.items()}
    lowest = {f"{name}, lowest": np.argsort(x)[:, :removed] for name, x in scores.items()}
    count = len(next(iter(scores.values())))
    drawn = [rng.choice(TRAINED, removed, replace=False) for _ in range(count)]
    return {"random": np.array(drawn)} | chosen | lowest


def final_losses(data: Examples, seed: int, removed: np.ndarray, queries: Examples) -> np.ndarray:
    """[Q]: each query's loss, by a network without its removed examples, [Q, removed]."""
    kept = np.ones((len(removed), TRAINED), bool)
    np.put_along_axis(kept, removed, False, axis=1)
    parts = range(0, len(kept), RUNS)
    models = [last_of_runs(trained(data, seed, kept[part : part + RUNS])) for part in parts]
    each = jax.vmap(lambda model, x, y: losses(model, x[None], y[None])[0])
    joined = jax.tree.map(lambda *p: np.concatenate(p), *models)
    return np.asarray(each(joined, *queries))


def last_of_runs(models: Any) -> Any:
    return jax.tree.map(lambda p: p[:, -1], models)


def changes(seed: int, count: int, removed: int) -> dict[str, np.ndarray]:
    """[Q] by choice: how much each query's loss rose."""
    split, rng = digits(seed), np.random.default_rng([3, seed])
    queries = tuple(part[:count] for part in split.rest)
    scores = all_scores(split.train, (queries[0], queries[1]), seed)
    asked = (queries[0], queries[1])
    nothing = np.zeros((1, 0), int).repeat(count, 0)
    before = final_losses(split.train, seed, nothing, asked)
    chosen = choices(scores, removed, rng)
    return {
        name: final_losses(split.train, seed, rows, asked) - before for name, rows in chosen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--removed", type=int, default=60)
    options = parser.parse_args()
    found = [changes(seed, options.queries, options.removed) for seed in range(options.seeds)]
    print(f"{options.seeds} seeds of {options.queries} queries, ", end="")
    print(f"{options.removed} of {TRAINED} examples removed\n")
    print("| removed | change of the query's loss | beside random, same seeds | above random |")
    print("|---|---|---|---|")
    for name in found[0]:
        means = [row[name].mean() for row in found]
        beside = [row[name].mean() - row["random"].mean() for row in found]
        up = np.mean([row[name] > row["random"] for row in found])
        compared = f"{interval(beside)} | {up:.0%}" if name != "random" else "|"
        print(f"| {name} | {interval(means)} | {compared} |")


if __name__ == "__main__":
    main()
