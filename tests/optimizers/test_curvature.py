"""Sophia and K-FAC: step for step those of a plain reference, on the same labels.

This folder alone tests each optimizer's steps, against references in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.statistics.kronecker_by_hand import factors_of, pairs_by_name, plain

B, D, H, C = 8, 4, 6, 3
STEPS, EVERY = 9, 3
RNG = np.random.default_rng(0)


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape) / 2, jnp.float32)


PARAMS = {"b": draw(H), "v": draw(H, C), "w": draw(D, H)}
X = draw(STEPS, B, D)
Y = jnp.asarray(RNG.integers(0, C, (STEPS, B)))
KEYS = jax.random.split(jax.random.key(0), STEPS)


def logits_of_one(p, x, tap=plain):
    y = tap("b", jnp.ones(1), tap("w", x, x @ p["w"]) + p["b"])
    h = jnp.tanh(y)
    return tap("v", h, h @ p["v"])


def of_one(p, example, tap=plain):
    x, label = example
    return -jax.nn.log_softmax(logits_of_one(p, x, tap))[label]


def loss(p, x, y):
    logits = jax.vmap(logits_of_one, (None, 0))(p, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def sampled(p, x, key):
    logits = jax.vmap(logits_of_one, (None, 0))(p, x)
    labels = hs.curvature.sampled_labels(key, logits)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def labels_of(p, i):
    return hs.curvature.sampled_labels(KEYS[i], jax.vmap(logits_of_one, (None, 0))(p, X[i]))


def trained(optimizer, statistic):
    """The parameters after each step of `hs.train_step`, told of curvature every few."""
    step = hs.train_step(loss, optimizer, batch_argnums=(1, 2))
    curvature = hs.grad(sampled, batch_argnums=1, statistics=statistic)
    told = jax.jit(lambda s, p, x, key: ho.with_curvature(s, curvature(p, x, key)[1]))
    # A step takes the arrays that it is given.
    params, state, path = jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS), []
    for i in range(STEPS):
        if i % EVERY == 0:
            state = told(state, params, X[i], KEYS[i])
        params, state, _ = step(params, state, X[i], Y[i])
        path.append(jax.tree.map(np.asarray, jax.tree.map(jnp.copy, params)))
    return path


def in_turn(path, refresh, step):
    """The reference's parameters after each step, in float64; its labels are those of `path`."""
    params = {name: np.asarray(x, np.float64) for name, x in PARAMS.items()}
    before = [PARAMS, *path]
    for i in range(STEPS):
        if i % EVERY == 0:
            refresh(params, X[i], labels_of(before[i], i))
        with jax.enable_x64(True):
            gradient = jax.grad(loss)(params, np.asarray(X[i], np.float64), Y[i])
        params = {name: step(name, params[name], np.asarray(gradient[name])) for name in params}
        yield params


def assert_followed(path, reference):
    for own, expected in zip(path, reference, strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(own[name], value, rtol=2e-4, atol=2e-5)


def test_sophia_follows_its_reference():
    b1, b2, gamma, rate, decay = 0.9, 0.8, 2.0, 0.1, 1e-2
    m, h = ({name: np.zeros(x.shape) for name, x in PARAMS.items()} for _ in range(2))

    def refresh(params, x, labels):
        with jax.enable_x64(True):
            each = jax.vmap(jax.grad(of_one), (None, 0))(params, (np.asarray(x, float), labels))
        for name in h:
            h[name] = b2 * h[name] + (1 - b2) * np.mean(np.asarray(each[name]) ** 2, 0)

    def step(name, param, gradient):
        m[name] = b1 * m[name] + (1 - b1) * gradient
        clipped = np.clip(m[name] / np.maximum(gamma * h[name], 1e-12), -1, 1)
        return param - rate * clipped - decay * param

    optimizer = ho.sophia(rate, b1, b2, gamma, weight_decay=decay)
    path = trained(optimizer, hs.second_moment())
    assert_followed(path, in_turn(path, refresh, step))


def test_kfac_follows_its_reference():
    b1, b2, damping, rate = 0.5, 0.8, 1e-2, 0.05
    v = {name: np.zeros(x.shape) for name, x in PARAMS.items()}
    kept, inverse, told = {}, {}, [0]

    def refresh(params, x, labels):
        told[0] += 1
        for name, pairs in pairs_by_name(of_one, params, (x, labels)).items():
            new = factors_of(pairs, "expand")
            old = kept.get(name, [np.zeros_like(side) for side in new])
            kept[name] = [b2 * a + (1 - b2) * b for a, b in zip(old, new, strict=True)]
            left, right = (side / (1 - b2 ** told[0]) for side in kept[name])
            pi = np.sqrt(np.trace(left) / len(left) / (np.trace(right) / len(right)))
            inverse[name] = (
                np.linalg.inv(left + pi * damping**0.5 * np.eye(len(left))),
                np.linalg.inv(right + damping**0.5 / pi * np.eye(len(right))),
            )

    def step(name, param, gradient):
        left, right = inverse[name]
        found = left @ gradient.reshape(len(left), len(right)) @ right
        v[name] = b1 * v[name] + found.reshape(param.shape)
        return param - rate * v[name]

    path = trained(ho.kfac(rate, b1, b2, damping), hs.kronecker_factors())
    assert_followed(path, in_turn(path, refresh, step))
