"""Two small losses, a few train steps on one batch, and optimizers with needs of all kinds."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.optimizers.test_optimizers import optimizer_of, options_of
from tests.statistics.statistic_models import cross_entropy, draws

SIZE, DRAW = 6, draws(0)
PARAMS, BATCH = {"w": DRAW(4, 3), "b": DRAW(3)}, (DRAW(SIZE, 4), DRAW(SIZE, 3))
MICRO = ho.micro_adam(0.05, eps=1e-3)


def square_error(p, x, y):
    return jnp.mean(jnp.sum((jnp.tanh(x @ p["w"]) + p["b"] - y) ** 2, -1))


CLASSES = 3
MLP_PARAMS = {"hidden": {"w": DRAW(4, 5), "b": DRAW(5)}, "head": DRAW(5, CLASSES)}


def mlp(p, x, y):
    h = jnp.tanh(x @ p["hidden"]["w"] + p["hidden"]["b"])
    return cross_entropy(h @ p["head"], y)


def mlp_batch(t):
    """A fresh one for every step."""
    x = draws(100 + t)(SIZE, 4)
    return x, np.argmax(x[:, :CLASSES], -1)


def run(optimizer, loss=square_error, batch=BATCH, params=PARAMS, steps=2, **options):
    """The parameters and the metrics after some steps on the same batch."""
    options = {"batch_argnums": tuple(range(1, 1 + len(batch)))} | options
    step = hs.train_step(loss, optimizer, **options)
    params = jax.tree.map(jnp.array, params)
    state, metrics = optimizer.init(params), None
    for _ in range(steps):
        params, state, metrics = step(params, state, *batch)
    return params, metrics


def assert_same(found, expected):
    """Other roundings: a gradient's, 1e-6 of it, over what eps leaves of Adam's denominator."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


OPTIMIZERS = {
    "micro_adam_msq": optimizer_of("micro_adam_msq", 0.05, **options_of("micro_adam_msq")),
    "micro_sign_sgd": optimizer_of("micro_sign_sgd", 0.05, **options_of("micro_sign_sgd")),
    "sign_ema": ho.sign_ema(0.05),
    "dp_sgd": ho.dp_sgd(0.1, 1.0, 0.0, seed=0, momentum=0.9),
    "moments": optax.chain(ho.track_moments(0.9), ho.adam(0.05, eps=1e-3)),
}
