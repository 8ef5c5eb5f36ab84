"""Projections: by every strategy those of the definition, with signs that nothing else decides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.measures.projections import random_signs
from tools.exactness.projections_by_definition import projections_of

K, SEED, B, T, D, LAYERS, ROWS = 4, 7, 6, 8, 24, 3, 40
RNG = np.random.default_rng(0)
SIGNS = ["---++++-+--+++---+-+-++++++---+-+-++---+", "--+---+--+++-+-++++-+-+-----+---++-++--+"]


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape) / 4, jnp.float32)


P = {
    "bias": draw(LAYERS, D),
    "heads": draw(D, 4, 6),
    "layers": draw(LAYERS, D, D),
    "outer": draw(4, 6, D),
    "scale": jnp.ones(()),
    "table": draw(ROWS, D),
    "thin": draw(D, 1),
}
IDS = jnp.asarray(RNG.integers(0, ROWS, (B, T)))


def loss(p, ids):
    """A scan over layers, heads, a scale, and a table that is the head too."""
    h, _ = jax.lax.scan(
        lambda h, layer: (jnp.tanh(h @ layer[0] + layer[1]) * p["scale"], None),
        p["table"][ids],
        (p["layers"], p["bias"]),
    )
    apart = jnp.tanh(jnp.einsum("btd,dhe->bthe", h, p["heads"]))
    h = h + jnp.einsum("bthe,hed->btd", apart, p["outer"]) + (h @ p["thin"])
    scores = h @ p["table"].T
    return jnp.mean(jax.nn.logsumexp(scores, -1) - scores[..., 0])


def own_gradients():
    each = jax.jit(jax.grad(loss))
    rows = [each(P, IDS[b : b + 1]) for b in range(B)]
    return jax.tree.map(lambda *g: np.stack([np.asarray(x, np.float64) for x in g]), *rows)


OWN = own_gradients()


def by_output(projection, seed=SEED):
    names = sorted(P)
    return {name: projection(OWN[name], K, seed, i) for i, name in enumerate(names)}


def held(found, expected):
    for name, value in expected.items():
        # Of sums with signs the terms are as large as the gradient's norm.
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5 * scale, err_msg=name)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_projections_are_those_of_the_definition(strategy):
    f = hs.grad(loss, statistics=hs.projected(K, SEED), strategy=strategy)
    held(f(P, IDS)[1], by_output(projections_of))


def test_signs_are_the_same_for_ever():
    """What has been written to disk with one version must fit what another computes."""
    found = random_signs(3, (1, 2), 2, 40)
    as_text = ["".join("+" if s > 0 else "-" for s in row) for row in np.asarray(found)]
    assert as_text == SIGNS


@pytest.mark.parametrize(
    "settings",
    [
        {"jax_enable_x64": True},
        {"jax_threefry_partitionable": False},
        {"jax_random_seed_offset": 5},
    ],
)
@pytest.mark.parametrize("seed", [3, (1 << 40) + 3, (1 << 64) - 1])
def test_no_setting_changes_a_sign(settings, seed):
    expected = random_signs(seed, (1, 2), 2, 40)
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        np.testing.assert_array_equal(random_signs(seed, (1, 2), 2, 40), expected)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
