"""Verification of padding and of the reduction: right modules pass, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.verify import verify, verify_rewritten
from tests.api.test_padding import ALL, MASK, W, X

INPUTS = [np.asarray(W), np.asarray(X), np.asarray(MASK)]
BATCH = ["x", "real"]


def each_loss(w, x):
    return jnp.sum(jnp.tanh(x @ w["w"]) ** 2, -1)


def mean_loss(w, x, real):
    return jnp.sum(jnp.where(real, each_loss(w, x), 0)) / jnp.maximum(jnp.sum(real), 1) + jnp.sum(
        w["w"] ** 2
    )


def sum_loss(w, x, real):
    return jnp.sum(each_loss(w, x) * real) + jnp.sum(w["w"] ** 2)


def dumped(loss, dtype=bool):
    shapes = {"w": jax.ShapeDtypeStruct(W.shape, W.dtype)}, jax.ShapeDtypeStruct(X.shape, X.dtype)
    lowered = jax.jit(jax.value_and_grad(loss), keep_unused=True).lower(
        *shapes, jax.ShapeDtypeStruct((6,), dtype)
    )
    return lowered.as_text(debug_info=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "reduction", "dtype", "drawn"),
    [
        (mean_loss, "mean", bool, False),
        pytest.param(mean_loss, "mean", jnp.float32, True, marks=pytest.mark.slow),
        (sum_loss, "sum", jnp.float32, False),
    ],
)
def test_statistics_of_the_real_examples_are_equivalent(loss, reduction, dtype, drawn):
    inputs = None if drawn else [*INPUTS[:2], INPUTS[2].astype(dtype)]
    asked = {"batch": BATCH, "statistics": ALL, "loss_reduction": reduction}
    verdict = verify(dumped(loss, dtype), **asked, is_real="real", inputs=inputs)
    assert verdict.verdict == "equivalent", verdict


@pytest.mark.parametrize(("loss", "reduction"), [(mean_loss, "mean"), (sum_loss, "sum")])
def test_a_module_that_counts_padding_is_not_equivalent(loss, reduction):
    original = hs.modules.load(dumped(loss))
    planted = hs.modules.rewrite_module(
        original, batch=BATCH, statistics=ALL, loss_reduction=reduction
    )
    request = make_request(original, BATCH, ALL, None, reduction, "refuse", {}, None, "real")
    verdict = verify_rewritten(original, planted, request, INPUTS)
    assert verdict.verdict == "not equivalent"
    passed = {c.name for c in verdict.comparisons if c.kind == "statistic" and c.passes}
    # A mean of ones is one over any examples; an example of weight zero has no loss, also where
    # nothing says so. Of these numbers the mean's square hardly moves: 22.72701, and 22.72709.
    alike = {"ones", "losses", "noise_scale.squared_mean"}
    assert {name.split("/")[0] for name in passed} <= alike


@pytest.mark.parametrize(
    ("flags", "message"), [([0] * 6, "no example"), ([1, 2, 0, 1, 1, 1], "flags or 0/1")]
)
def test_flags_that_say_nothing_are_errors(flags, message):
    inputs = [*INPUTS[:2], np.array(flags, np.int32)]
    with pytest.raises(ValueError, match=message):
        verify(
            dumped(mean_loss, jnp.int32),
            batch=BATCH,
            statistics=hs.norms(),
            is_real="real",
            inputs=inputs,
        )


B = 6
DRAW = np.random.default_rng(0)
WEIGHTS, ROWS, Y = (jnp.asarray(DRAW.normal(size=s), jnp.float32) for s in ((3,), (B, 3), (B,)))


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


def verified(loss, reduction):
    asked = {"statistics": hs.norms(), "loss_reduction": reduction}
    return hs.verify(hs.grad(loss, batch_argnums=(1, 2), **asked), WEIGHTS, ROWS, Y)


@pytest.mark.first(1)
@pytest.mark.parametrize("said", ["mean", "sum"])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean(name, said):
    verdict = verified(MEANS[name], said)
    assert verdict.verdict == ("equivalent" if said == "mean" else "not equivalent"), verdict
    assert "the loss is a mean over" in verdict.why


@pytest.mark.first(2)
@pytest.mark.parametrize("said", ["mean", "sum"])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum(name, said):
    verdict = verified(SUMS[name], said)
    assert verdict.verdict == ("equivalent" if said == "sum" else "not equivalent"), verdict
    assert "the loss is a sum over" in verdict.why
    assert ('loss_reduction="sum"' in verdict.why) == (said == "mean")
