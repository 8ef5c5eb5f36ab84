"""The experiments' TracIn, LoGra and TRAK, against their equations on gradients from `vmap`; and
that what they score highest matters most.
"""

import jax
import numpy as np
import pytest

from tools.exactness.projections_by_definition import dense_projections_of, projections_of

pytest.importorskip("sklearn")

from tools.experiments import removal
from tools.experiments.attribution import digits, methods, projection_accuracy
from tools.experiments.intervals import interval

SEED, N, Q = 3, 40, 3


@pytest.fixture(scope="module")
def split():
    found = digits.digits(SEED)
    return tuple(x[:N] for x in found.train), tuple(x[:Q] for x in found.rest)


@pytest.fixture(scope="module")
def models():
    """At each checkpoint other parameters."""
    keys = jax.random.split(jax.random.key(0), digits.CHECKPOINTS)
    return jax.vmap(digits.initial)(keys)


def own_gradients(fun, params, data):
    """By name, [B, *shape], in float64."""
    one = jax.grad(lambda params, x, y: fun(params, x[None], y[None])[0])
    own = jax.vmap(one, (None, 0, 0))(params, *data)
    return {name: np.asarray(g, np.float64) for name, g in own.items()}


def projected_losses(params, data):
    own = own_gradients(digits.losses, params, data)
    found = [projections_of(own[name], methods.K, 0, i) for i, name in enumerate(sorted(own))]
    return [x.reshape(len(x), -1) for x in found]


def projected_margins(params, data):
    own = own_gradients(methods.margins, params, data)
    names = enumerate(sorted(own))
    return sum(dense_projections_of(own[name], methods.DENSE, 0, i) for i, name in names)


def influences(q, g):
    block = g.T @ g / len(g)
    shift = methods.DAMPING * np.trace(block) / len(block)
    return q @ np.linalg.inv(block + shift * np.eye(len(block))) @ g.T


def held(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_tracin(split, models):
    train, queries = split
    expected = 0
    for c in range(digits.CHECKPOINTS):
        params = digits.checkpoint(models, c)
        pairs = zip(projected_losses(params, queries), projected_losses(params, train), strict=True)
        expected = expected + digits.RATE * digits.STEPS * sum(q @ g.T for q, g in pairs)
    held(methods.tracin(models, train, queries), expected)


def test_logra(split, models):
    train, queries = split
    params = digits.last(models)
    rows = projected_losses(params, train)
    asked = projected_losses(params, queries)
    pairs = zip(asked, rows, strict=True)
    held(methods.logra(params, train, queries), sum(influences(q, g) for q, g in pairs))
    own = sum(np.diag(influences(g, g)) for g in rows)
    held(methods.logra_of_itself(params, train), own)


def test_trak(split, models):
    train, queries = split
    each = [digits.checkpoint(models, m) for m in range(2)]
    pairs = [(projected_margins(p, queries), projected_margins(p, train)) for p in each]
    wrong = [1 - np.exp(-np.asarray(digits.losses(p, *train), np.float64)) for p in each]
    expected = np.mean([influences(q, g) for q, g in pairs], 0) * np.mean(wrong, 0)
    held(methods.trak(each, train, queries), expected)


def test_a_margin_is_the_odds_of_the_label(split, models):
    train, _ = split
    params = digits.last(models)
    p = np.exp(-np.asarray(digits.losses(params, *train), np.float64))
    held(methods.margins(params, *train), np.log(p / (1 - p)))


def test_intervals():
    """Of 1, 2, 3: t(0.975, 2) = 4.303 times 1 / sqrt(3)."""
    assert interval([1, 2, 3]) == "2.000 ± 2.484"


def test_without_the_highest_a_querys_loss_rises():
    """More than without random ones; and without the lowest it falls more."""
    found = {name: x.mean() for name, x in removal.changes(seed=11, count=8, removed=60).items()}
    for name in ("TracIn", "LoGra", "TRAK"):
        assert found[f"{name}, highest"] > found["random"] + 0.1
        assert found[f"{name}, lowest"] < found["random"]


def test_more_numbers_keep_more_of_the_scores():
    found = projection_accuracy.accuracies(seed=11, count=8)
    for kind in projection_accuracy.KINDS:
        numbers, accuracies = zip(*(found[kind, k] for k in projection_accuracy.KEPT), strict=True)
        assert list(numbers) == sorted(numbers)
        assert list(accuracies) == sorted(accuracies)
        assert 0.3 < accuracies[0] < accuracies[-1] < 1
