"""How noisy two estimates of the Fisher diagonal are: a batch's mean of squares, and B times the
square of its mean gradient, which is Sophia's (Gauss-Newton-Bartlett). Both are of drawn labels.

python -m tools.bench.curvature.fisher_variance [--batch 64] [--draws 200] [--seeds 5]

Both have the same mean. Of an MLP on digits; the ratio is of variances over draws of labels, each
summed over all parameters, with its 95 % interval over starts and batches.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from sklearn.datasets import load_digits  # pyright: ignore

import hlo_surgery as hs
from tools.bench.curvature.training import initial, sampled
from tools.experiments.intervals import interval


def estimates(params: Any, x: Array, keys: Array) -> tuple[Array, Array]:
    """Of each draw of labels the mean of squares and B times the squared mean, [draws, P]."""
    f = hs.grad(sampled, batch_argnums=1, statistics=hs.second_moment())

    def of_draw(key: Array) -> tuple[Array, Array]:
        mean, squares = f(params, x, key)
        return ravel_pytree(squares)[0], len(x) * ravel_pytree(mean)[0] ** 2

    return jax.jit(lambda: jax.lax.map(of_draw, keys))()


def variances(params: Any, x: Array, keys: Array) -> tuple[float, float, float]:
    """Of both estimates over the draws, summed over all parameters; and their means' ratio."""
    own, of_mean = (np.asarray(found, np.float64) for found in estimates(params, x, keys))
    return own.var(0, ddof=1).sum(), of_mean.var(0, ddof=1).sum(), of_mean.sum() / own.sum()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    digits: Any = load_digits()
    data = jnp.asarray(digits.data / 16, jnp.float32)
    ratios, means = [], []
    for seed in range(options.seeds):
        start, drawn = jax.random.split(jax.random.key(seed))
        chosen = jax.random.choice(start, len(data), (options.batch,), replace=False)
        keys = jax.random.split(drawn, options.draws)
        own, of_mean, mean = variances(initial(seed), data[chosen], keys)
        ratios.append(of_mean / own)
        means.append(mean)
    print(f"batches of {options.batch}, {options.draws} draws, {options.seeds} starts")
    print(f"variance of B times the squared mean over that of squares: {interval(ratios, 1)}")
    print(f"mean of the one over that of the other: {interval(means)}")


if __name__ == "__main__":
    main()
