"""The SNR of single examples' gradients, and of their signs, measured over many examples."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import hlo_surgery as hs
from hlo_surgery.estimators import gradient_snr, moment_ratio, sign_snr
from tools.experiments.training.data import Text

BATCH_SIZE = 32
SEED = 1_000
"""Of the examples' order, which no run has."""
PARTS = ("embedding", "blocks", "head")
BINS: list[float] = np.geomspace(0.04, 2, 13).tolist()
FEWEST = 50
"""Parameters that a bin needs."""
SURE = 4
"""Standard errors from zero."""

STATISTICS = {
    "square": hs.second_moment(),
    "sign": hs.mean_sign(),
    "nonzero": hs.mean_of(lambda g: jnp.abs(jnp.sign(g))),
}


class Means(NamedTuple):
    """Of g, g**2, sign(g), |sign(g)| over so many examples, each flat."""

    examples: int
    g: Any
    square: Any
    sign: Any
    nonzero: Any


class Halves(NamedTuple):
    """Each of other examples: what one half chooses the other measures, and chance has no part."""

    first: Means
    second: Means


def measure(loss: Callable[..., Any], params: Any, text: Text, examples: int) -> dict[str, Halves]:
    """For each part of the model."""
    first, second = (_means(loss, params, text, examples, half) for half in range(2))
    return {name: Halves(first[name], second[name]) for name in PARTS}


def binned(halves: Halves) -> tuple[list[float], list[float]]:
    """The SNR of g and of sign(g), each of the parameters with a similar SNR of g together."""
    first, second = halves
    places = np.digitize(np.asarray(gradient_snr(first.g**2, first.square, first.examples)), BINS)
    inside = [places == i for i in range(1, len(BINS)) if (places == i).sum() >= FEWEST]
    pairs = ((second.g, second.square), (second.sign, second.nonzero))
    ratios = [
        np.asarray(moment_ratio(m**2, s, second.examples, effective_batch_size=1)) for m, s in pairs
    ]
    x, y = (
        [float(np.sqrt(max(0.0, np.nanmean(ratio[where])))) for where in inside] for ratio in ratios
    )
    return x, y


def opposed(halves: Halves) -> tuple[int, int]:
    """Parameters whose mean g is surely not zero, and those whose mean sign(g) opposes it."""
    first, second = halves
    sure = first.g**2 > SURE**2 * (first.square - first.g**2) / first.examples
    return int(sure.sum()), int(np.sum((first.g * second.sign)[sure] < 0))


def normal_theory(snr: Sequence[float]) -> list[float]:
    return np.asarray(sign_snr(jnp.asarray(snr))).tolist()


def _means(
    loss: Callable[..., Any], params: Any, text: Text, examples: int, half: int
) -> dict[str, Means]:
    gradient = jax.jit(hs.grad(loss, statistics=STATISTICS))
    steps = examples // BATCH_SIZE
    total: Any = None
    for step in range(half * steps, (half + 1) * steps):
        mean, found = gradient(params, text.batch(step, BATCH_SIZE, SEED))
        values = (mean, *(found[name] for name in STATISTICS))
        total = values if total is None else jax.tree.map(jnp.add, total, values)
    means = jax.tree.map(lambda x: np.asarray(x) / steps, total)
    return {
        name: Means(steps * BATCH_SIZE, *(_flat(tree[name]) for tree in means)) for name in PARTS
    }


def _flat(tree: Any) -> Any:
    return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
