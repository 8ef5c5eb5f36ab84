"""Projections: by every strategy those of the definition, with signs that nothing else decides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.measures.projections import random_signs
from tools.exactness.projections_by_definition import dense_projections_of, projections_of

K, SEED, B, T, D, LAYERS, ROWS = 4, 7, 6, 8, 24, 3, 40
RNG = np.random.default_rng(0)
SIGNS = [
    "---++++-+--+++---+-+-++++++---+-+-++---+",
    "--+---+--+++-+-++++-+-+-----+---++-++--+",
]


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "an integer k from 1"),
        ({"k": 2.5}, "an integer k from 1"),
        ({"k": True}, "an integer k from 1"),
        ({"k": 10**9}, "an integer k from 1"),
        ({"k": 2, "seed": -1}, "an integer seed from 0"),
        ({"k": 2, "seed": 1 << 64}, "an integer seed from 0"),
        ({"k": 2, "kind": "sparse"}, "a kind of kronecker or dense"),
        ({"k": 2, "per": "layer"}, "per is 'layer'"),
    ],
)
def test_bad_arguments_say_what_to_write(arguments, message):
    with pytest.raises(ValueError, match=message):
        hs.projected(**arguments)


def test_dense_projections_in_blocks():
    def wide(w, x):
        return jnp.mean(jnp.sin(x @ w) @ jnp.ones(600))

    w, x = draw(30, 600), draw(3, 30)
    f = hs.grad(wide, statistics=hs.projected(K, kind="dense"))
    own = jax.vmap(lambda x: jax.grad(wide)(w, x[None]))(x)
    held({"w": f(w, x)[1]}, {"w": dense_projections_of(np.asarray(own, np.float64), K)})


@pytest.mark.parametrize("kind", ["kronecker", "dense"])
def test_weights_by_the_norms_of_projections(kind):
    """They are those that the projections themselves have, and near the gradients'."""
    draw = np.random.default_rng(3)
    params = {"w": draw.normal(size=(6, 5)), "b": draw.normal(size=5)}
    x = draw.normal(size=(9, 4, 6))

    def loss(p, x):
        return jnp.mean(jnp.tanh(x @ p["w"] + p["b"]))

    projected = hs.projected(3, seed=1, kind=kind)
    asked = {
        "rows": projected,
        "own": hs.per_example(),
        "weighted": hs.weighted_mean(lambda norms: 1 / (1 + norms), of=projected),
    }
    found = hs.grad(loss, statistics=asked)(params, x)[1]
    squares = [np.sum(np.reshape(rows, (9, -1)) ** 2, 1) for rows in found["rows"].values()]
    weights = 1 / (1 + np.sqrt(sum(squares)))
    for name, own in found["own"].items():
        expected = np.tensordot(weights, own, 1) / 9
        np.testing.assert_allclose(found["weighted"][name], expected, rtol=1e-5, atol=1e-7)


def test_weights_are_of_no_other_statistic():
    with pytest.raises(ValueError, match="of=hs"):
        hs.weighted_mean(lambda norms: norms, of=hs.norms())
