"""Refusals word for word, as a user reads them; and the answers of `on_mixing="contribution"`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.equivalence.test_fixtures import METAS, SQUARES, rewritten

MIXING_HELP = (
    "  help:    make every example's gradient its own (running statistics, GroupNorm, a "
    "per-example loss); mark what the loss takes as given with hs.constant, in place of "
    "stop_gradient; "
    'or pass on_mixing="contribution" to treat such values as constants'
)

SUMS_HELP = MIXING_HELP.replace(
    "make every",
    "clip, guard, normalise or apply gradients outside, once the function has returned them, or "
    "have them by hs.grad within it; of a loss, take the mean itself, and what is made of it, as "
    "its root, outside; else make every",
)

BATCH_NORM = (
    "mixing.py:19: refused: stablehlo.subtract: a sum over the examples (stablehlo.reduce at "
    "mixing.py:19) "
    "meets each example's own values\n"
    "  output:  ['bias'] (and 3 more)\n" + MIXING_HELP
)

CONTRASTIVE = (
    "mixing.py:31: refused: stablehlo.dot_general: each example meets others: "
    "the operands hold the examples along different or divided dimensions\n"
    "  output:  ['image'] (and 1 more)\n" + MIXING_HELP
)

CLIPPED = (
    "mixing.py:42: refused: stablehlo.multiply: two sums over the examples (the first by "
    "stablehlo.reduce at "
    "mixing.py:37) are multiplied\n"
    "  output:  ['bias'] (and 2 more)\n" + SUMS_HELP
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("batch_norm_training", BATCH_NORM),
        ("contrastive", CONTRASTIVE),
        ("global_norm_clip", CLIPPED),
    ],
)
def test_refusal_reads(name, text):
    with pytest.raises(hs.Refusal) as refused:
        rewritten(name, SQUARES)
    assert str(refused.value) == text


WEIGHTS = jnp.array([1.0, 2.0, 6.0])


def weighted_bias(b, x):
    """A linear head: the gradient sums the weights, and no example reaches it. Yet g_b is
    weight b.
    """
    return jnp.mean(WEIGHTS * (x.sum(1) + b))


def weighted_bias_by_dot(b, x):
    return jnp.dot(WEIGHTS, x.sum(1) + b)


def dropped_out(params, x, key):
    hidden = x @ params["kernel"] + params["bias"]
    return jnp.mean(jnp.sum(hidden * jax.random.bernoulli(key, 0.5, hidden.shape), -1))


def labelled(params, x, labels):
    """The labels are not named as a batch argument."""
    logits = x @ params["kernel"] + params["bias"]
    return -jnp.mean(logits[jnp.arange(3), labels])


LINEAR = {"kernel": jnp.ones((4, 2)), "bias": jnp.ones(2)}
POSITIONAL = {
    "weights of a bias": (weighted_bias, (jnp.float32(0.5),)),
    "weights of a bias, contracted": (weighted_bias_by_dot, (jnp.float32(0.5),)),
    "a dropout mask behind a linear head": (dropped_out, (LINEAR, jax.random.key(0))),
    "labels of a linear head": (labelled, (LINEAR, jnp.array([0, 1, 1]))),
}


@pytest.mark.parametrize("name", POSITIONAL)
def test_trap_9_what_belongs_to_positions_is_its_examples(name):
    """The gradient of each example's own loss, with its own number, mask or label."""
    loss, (params, *rest) = POSITIONAL[name]
    x = jnp.arange(12.0).reshape(3, 4) / 10
    gradient, found = hs.grad(loss, statistics=hs.per_example())(params, x, *rest)
    for own, whole in zip(*map(jax.tree.leaves, (found, gradient)), strict=True):
        np.testing.assert_allclose(own.mean(0), whole, rtol=1e-5, atol=1e-6)
    if name == "a dropout mask behind a linear head":
        mask = jax.random.bernoulli(rest[0], 0.5, (3, 2))
        np.testing.assert_allclose(found["bias"], mask, rtol=1e-6)
        np.testing.assert_allclose(found["kernel"], x[:, :, None] * mask[:, None], rtol=1e-6)
    if name == "labels of a linear head":
        hot = -jax.nn.one_hot(rest[0], 2)
        np.testing.assert_allclose(found["bias"], hot, rtol=1e-6)


def test_a_phi_that_is_not_factorable():
    with pytest.raises(
        hs.Refusal, match=r"phi is declared factorable, but phi\(0.315 \* 3.96\) = 0.847, not 0.304"
    ):
        hs.mean_of(jnp.tanh, factorable=True)


def batch_norm_loss(params, x, targets):
    hidden = jax.vmap(lambda p, row: row @ p["kernel"])(params, x)
    centred = hidden - jnp.mean(hidden, axis=0)
    normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=0) + 1e-3)
    scaled = jax.vmap(lambda p, row: jnp.tanh(row * p["scale"] + p["bias"]) @ p["readout"])(
        params, normal
    )
    return jnp.mean((scaled - targets) ** 2)


def contrastive_loss(params, images, texts):
    left = jax.vmap(lambda p, row: jnp.tanh(row @ p["image"]))(params, images)
    right = jax.vmap(lambda p, row: jnp.tanh(row @ p["text"]))(params, texts)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(left @ right.T)))


MIXING = {
    "batch_norm": (
        batch_norm_loss,
        {"kernel": (6, 5), "scale": (5,), "bias": (5,), "readout": (5, 2)},
        [(4, 6), (4, 2)],
    ),
    "contrastive": (contrastive_loss, {"image": (6, 5), "text": (3, 5)}, [(4, 6), (4, 3)]),
}


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize(("loss", "shapes", "batch"), MIXING.values(), ids=MIXING.keys())
def test_contributions_are_those_of_each_examples_copy_of_the_parameters(
    loss, shapes, batch, strategy
):
    """With the mixed values constant, example b contributes what flows into its own copy of the
    parameters.
    """
    rng = np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()
    }
    batch = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in batch]
    size = len(batch[0])

    def shared(params, *batch):
        return loss(jax.tree.map(lambda p: jnp.broadcast_to(p, (size, *p.shape)), params), *batch)

    options = {
        "batch_argnums": (1, 2),
        "statistics": {"all": hs.per_example(), "squares": hs.second_moment()},
    }
    with pytest.raises(hs.Refusal):
        hs.grad(shared, **options)(params, *batch)
    gradient, found = hs.grad(shared, **options, on_mixing="contribution", strategy=strategy)(
        params, *batch
    )
    copies = jax.tree.map(lambda p: jnp.stack([p] * size), params)
    expected = jax.tree.map(lambda g: size * g, jax.grad(loss)(copies, *batch))
    for name in params:
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(found["all"][name], expected[name], rtol=0, atol=2e-5 * scale)
        np.testing.assert_allclose(
            gradient[name], expected[name].mean(0), rtol=0, atol=2e-5 * scale
        )
        np.testing.assert_allclose(
            found["squares"][name], (expected[name] ** 2).mean(0), rtol=0, atol=4e-5 * scale**2
        )


def test_what_is_passed_already_is_no_help():
    def scaled(p, x):
        h = x @ p["w"]
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ h.T * p["t"])))

    f = hs.grad(scaled, statistics=hs.norms(), on_mixing="contribution")
    with pytest.raises(hs.Refusal) as refusal:
        f({"w": jnp.ones((3, 2)), "t": jnp.float32(2.0)}, jnp.ones((4, 3)))
    assert "the statistics of other parameters" in refusal.value.help
    assert "contribution" not in refusal.value.help


def test_the_attributes_of_a_refusal():
    with pytest.raises(hs.Refusal) as refused:
        rewritten("contrastive", SQUARES)
    assert refused.value.op == "stablehlo.dot_general"
    assert refused.value.where == f"{METAS['contrastive']['mixing']['file']}:31"
    assert refused.value.output == "['image'] (and 1 more)"
    assert refused.value.why in str(refused.value)
    assert refused.value.help in str(refused.value)
