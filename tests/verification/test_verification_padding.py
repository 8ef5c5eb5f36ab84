"""Verification with padding examples: right modules pass, and none in which padding counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.verify import verify, verify_rewritten
from tests.api.test_padding import ALL, MASK, W, X
from tests.cli.test_cli import answered, rejected

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


def padding_counts(w, x, real):
    return jnp.mean(each_loss(w, x)) + 0.0 * jnp.sum(real)


def dumped(loss, dtype=bool):
    shapes = {"w": jax.ShapeDtypeStruct(W.shape, W.dtype)}, jax.ShapeDtypeStruct(X.shape, X.dtype)
    lowered = jax.jit(jax.value_and_grad(loss), keep_unused=True).lower(
        *shapes, jax.ShapeDtypeStruct((6,), dtype)
    )
    return lowered.as_text(debug_info=True)


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


@pytest.mark.parametrize(("real", "batch"), [([0, 0, 1, 0, 0, 0], BATCH), ([1] * 6, ["x"])])
def test_one_real_example_or_no_padding(real, batch):
    inputs = [*INPUTS[:2], np.array(real, bool)]
    statistics = {name: ALL[name] for name in ("variance", "noise_scale", "gram")}
    verdict = verify(
        dumped(mean_loss), batch=batch, statistics=statistics, is_real=-1, inputs=inputs
    )
    assert verdict.verdict == "equivalent", verdict


@pytest.mark.parametrize(("loss", "reduction"), [(mean_loss, "mean"), (sum_loss, "sum")])
def test_a_module_that_counts_padding_is_not_equivalent(loss, reduction):
    original = hs.load(dumped(loss))
    planted = hs.rewrite_module(original, batch=BATCH, statistics=ALL, loss_reduction=reduction)
    request = make_request(original, BATCH, ALL, None, reduction, "refuse", {}, None, "real")
    verdict = verify_rewritten(original, planted, request, INPUTS)
    assert verdict.verdict == "not equivalent"
    passed = {c.name for c in verdict.comparisons if c.kind == "statistic" and c.passes}
    # A mean of ones is one over any examples; an example of weight zero has no loss, also where
    # nothing says so. Of these numbers the mean's square hardly moves: 22.72701, and 22.72709.
    alike = {"ones", "losses", "noise_scale.squared_mean"}
    assert {name.split("/")[0] for name in passed} <= alike


def test_an_original_that_counts_padding_is_not_equivalent():
    verdict = verify(
        dumped(padding_counts), batch=BATCH, statistics=hs.norms(), is_real="real", inputs=INPUTS
    )
    assert verdict.verdict == "not equivalent"


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


def test_the_command_line_takes_is_real(tmp_path):
    right, wrong = tmp_path / "right.mlir", tmp_path / "wrong.mlir"
    right.write_text(dumped(mean_loss))
    wrong.write_text(dumped(padding_counts))
    asked = ("--batch", "x", "--batch", "real", "--statistic", "second_moment", "--is-real", "real")
    assert "equivalent: the statistics" in answered("verify", right, *asked).stdout
    rejected("verify", wrong, *asked, code=1)
    assert "one flag or 0/1 for each" in rejected("verify", right, *asked[:-1], "x")
