"""Groups of m rows as examples: every statistic is that of the means of the groups' gradients.

m = 1 is one row alone, m = B the whole batch: from MicroAdam's second moment to Adam's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.microbatches import test_microbatches
from tests.microbatches.microbatch_statistics import PARAMS, X
from tests.statistics.statistic_models import MODELS, in_float64

LIMIT = 0.1
STATISTICS = {
    "squares": hs.second_moment(),
    "sign": hs.mean_sign(),
    "variance": hs.variance(unbiased=False),
    "norms": hs.norms(),
    "gram": hs.gram(),
    "clipped": hs.clipped_mean(LIMIT),
    "clipped squares": hs.clipped_second_moment(LIMIT),
    "whole": hs.sum_of(lambda tree: jax.tree.map(jnp.cos, tree), "global"),
    "each": hs.per_example(),
}


def flat(tree):
    return np.concatenate([g.reshape(len(g), -1) for g in jax.tree.leaves(tree)], axis=1)


def expected(groups):
    """From the gradients of the groups."""
    rows = flat(groups)
    weights = np.minimum(1, LIMIT / np.linalg.norm(rows, axis=1))

    def every(phi):
        return jax.tree.map(phi, groups)

    return {
        "squares": every(lambda g: (g**2).mean(0)),
        "sign": every(lambda g: np.sign(g).mean(0)),
        "variance": every(lambda g: g.var(0)),
        "norms": np.linalg.norm(rows, axis=1),
        "gram": rows @ rows.T,
        "clipped": every(lambda g: np.tensordot(weights, g, 1) / len(g)),
        "clipped squares": every(lambda g: np.tensordot(weights**2, g**2, 1) / len(g)),
        "whole": every(lambda g: np.cos(g).sum(0)),
        "each": groups,
    }


def of_rows(gradient, params, rows):
    """The gradient of each row, by the program itself: of a mean loss over copies of it."""

    def one(*row):
        return gradient(params, *(jnp.stack([x] * len(rows[0])) for x in row))

    return jax.vmap(one)(*rows)


def assert_groups(gradient, params, rows, m):
    with jax.enable_x64(True):
        params, rows = in_float64(params), in_float64(rows)
        each = jax.tree.map(np.asarray, of_rows(gradient, params, rows))
        wanted = expected(jax.tree.map(lambda g: g.reshape(-1, m, *g.shape[1:]).mean(1), each))
        numbers = tuple(range(1, 1 + len(rows)))
        how = {"batch_argnums": numbers, "statistics": STATISTICS, "rows_per_example": m}
        found = jax.tree.map(np.asarray, hs.rewrite(gradient, **how)(params, *rows)[1])
    for name in wanted:
        pairs = zip(*map(jax.tree.leaves, (found[name], wanted[name])), strict=True)
        for a, b in pairs:
            scale = 1e-9 * np.abs(b).max()
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=scale, err_msg=name)


def six(batch):
    """Of five examples six, the last of which is between two others."""
    return tuple(
        np.concatenate([x, x[:1] if x.dtype.kind == "i" else x[:1] / 2 + x[1:2]]) for x in batch
    )


SLOW = [
    pytest.param(name, m, marks=pytest.mark.slow)
    for name in ("mlp", "tied", "convolution", "scans", "tokens")
    for m in (2, 3, 6)
    if (name, m) != ("scans", 2)
]


@pytest.mark.parametrize(("name", "m"), [("scans", 2), *SLOW])
def test_of_models(name, m):
    model = MODELS[name]
    assert_groups(jax.grad(model.loss), model.params, six(model.batch), m)


@pytest.mark.parametrize(
    ("name", "m"),
    [
        ("runs", 2),
        *(
            pytest.param(name, m, marks=pytest.mark.slow)
            for name, m in (("inside the loss", 2), ("one by one", 2), ("one by one", 3))
        ),
    ],
)
def test_across_microbatches(name, m):
    """A microbatch holds whole groups, or one example."""
    assert_groups(test_microbatches.CASES[name], PARAMS, (X,), m)
