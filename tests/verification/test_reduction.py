"""Whether a loss is the mean or the sum that it is said to be, by copies of single examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B = 6
DRAW = np.random.default_rng(0)
W, X, Y = (jnp.asarray(DRAW.normal(size=s), jnp.float32) for s in ((3,), (B, 3), (B,)))
REAL = jnp.arange(B) % 3 > 0


def losses(w, x, y):
    return (jnp.tanh(x @ w) - y) ** 2


def decayed(reduce):
    return lambda w, x, y: reduce(losses(w, x, y)) + 3 * jnp.sum(w**2)


def in_parts(w, x, y):
    """A sum over a number of steps, each of which takes its part of the rows."""
    parts = x.reshape(2, -1, 3), y.reshape(2, -1)
    return jnp.mean(jax.lax.map(lambda part: jnp.mean(losses(w, *part)), parts))


MEANS = {
    "mean": lambda w, x, y: jnp.mean(losses(w, x, y)),
    "with decay": decayed(jnp.mean),
    "of parts": in_parts,
    "weighted": lambda w, x, y: jnp.mean(y**2 * losses(w, x, y)),
}
SUMS = {
    "sum": lambda w, x, y: jnp.sum(losses(w, x, y)),
    "with decay": decayed(jnp.sum),
    "over a number": lambda w, x, y: jnp.sum(losses(w, x, y)) / B,
}


def verified(loss, reduction, x=X, y=Y, **options):
    f = hs.grad(
        loss,
        batch_argnums=(1, 2),
        statistics=hs.norms(),
        loss_reduction=reduction,
        **options,
    )
    return hs.verify(f, W.astype(x.dtype), x, y)


@pytest.mark.parametrize("said", ["mean", "sum"])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean(name, said):
    verdict = verified(MEANS[name], said)
    assert verdict.verdict == ("equivalent" if said == "mean" else "not equivalent"), verdict
    assert "the loss is a mean over" in verdict.why


@pytest.mark.parametrize("said", ["mean", "sum"])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum(name, said):
    verdict = verified(SUMS[name], said)
    assert verdict.verdict == ("equivalent" if said == "sum" else "not equivalent"), verdict
    assert "the loss is a sum over" in verdict.why
    assert ('loss_reduction="sum"' in verdict.why) == (said == "mean")


@pytest.mark.parametrize(("reduce", "fits"), [(jnp.mean, "mean"), (jnp.sum, "sum")])
def test_over_real_examples(reduce, fits):
    def loss(w, x, real):
        return reduce(jnp.tanh(x @ w) ** 2, where=real)

    for said in ("mean", "sum"):
        verdict = verified(loss, said, y=REAL, is_real=2)
        assert (verdict.verdict == "equivalent") == (said == fits), verdict


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda w, x, y: jnp.mean(losses(w, x, Y)), "with another number of rows it raises"),
        (lambda w, x, y: jnp.sum(w**2), "one and the same gradient"),
        (
            lambda w, x, y: jnp.mean(
                losses(w, x * jax.random.uniform(jax.random.key(0), x.shape), y)
            ),
            "neither those of a mean nor",
        ),
    ],
)
def test_what_does_not_show_is_said_to_be_trusted(loss, why):
    verdict = verified(loss, "mean")
    assert "that the loss is a mean is taken on trust: " in verdict.why
    assert why in verdict.why
