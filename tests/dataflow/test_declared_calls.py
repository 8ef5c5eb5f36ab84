"""Custom calls that are declared by name, right and wrong, and LAPACK's, which are known.

This folder alone tests calls of kernels and of LAPACK.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.verification.verify import verify

B, D = 4, 3
SCHUR, SOLVE = "lapack_sgees_ffi", "lapack_strsm_ffi"
W = jnp.cos(jnp.arange(float(D * 2))).reshape(D, 2)
X = jnp.sin(jnp.arange(float(B * D * D))).reshape(B, D, D)


def by_features(w, x):
    """A linear model whose losses are weighted by what the call makes of each example."""
    weights = (jax.lax.linalg.schur(x)[0] ** 3).sum((1, 2))
    return jnp.mean(weights * jnp.tanh(x @ w).sum((1, 2)))


MIXING = 2 * jnp.eye(B) + jnp.tril(jnp.ones((B, B)))


def mixing(w, x):
    """A solve whose columns are of one number of all examples."""
    h = jax.lax.linalg.triangular_solve(MIXING, x @ w, left_side=True, lower=True)
    return jnp.mean((jnp.tanh(h) ** 2).sum(-1))


def dumped(loss, *arrays):
    return jax.jit(jax.grad(loss)).lower(*arrays).as_text(debug_info=True)


def asked(text, calls, how=hs.modules.rewrite_module):
    return how(text, batch=["x"], statistics=hs.second_moment(), custom_calls=calls)


RIGHT = {
    "one axis for all": {SCHUR: (0, 0)},
    "one for each": {SCHUR: ([0], (0, 0, 0, 0, 0, 0))},
    "from the end": {SCHUR: (-3, [-3, 0, 0, -2, -1, 0])},
    "of results that are not used none": {SCHUR: (0, [0, None, None, None, 0, 0])},
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", RIGHT)
def test_a_declared_call_is_taken_one_by_one(name):
    text = dumped(by_features, W, X)
    module = asked(text, RIGHT[name])
    one = jax.vmap(lambda x: jax.grad(by_features)(W, x[None]))(X)
    np.testing.assert_allclose(module.call(W, X)[1], (one**2).mean(0), rtol=1e-4)
    (trusted,) = module.plan.trusted
    assert trusted.call == SCHUR
    assert "test_declared_calls.py:" in trusted.where
    assert asked(text, RIGHT[name], verify).verdict == "equivalent"


def test_without_a_word_the_refusal_names_the_way_out():
    with pytest.raises(hs.Refusal) as found:
        asked(dumped(by_features, W, X), None)
    assert "hs.per_example_call(fn, in_axes, out_axes)" in found.value.help
    assert "custom_calls=" in found.value.help


MISUSED = {
    "no such call": ({"kernel": (0, 0)}, ValueError, f"'kernel', which .* it calls {SCHUR}"),
    "too many axes": ({SCHUR: ([0, 0], 0)}, ValueError, "2 axes for the 1 operands"),
    "an axis that is not there": ({SCHUR: (3, 0)}, ValueError, r"axis 3 .* shape \(4, 3, 3\)"),
    "sizes that differ": ({SCHUR: (1, 0)}, ValueError, "different sizes: 3, 4"),
    "no dict": ([SCHUR], TypeError, "pass a dict such as"),
}


@pytest.mark.parametrize("name", MISUSED)
def test_what_does_not_fit_the_calls(name):
    calls, error, said = MISUSED[name]
    with pytest.raises(error, match=said):
        asked(dumped(by_features, W, X), calls)


@pytest.mark.parametrize("loss", [mixing, lambda w, x: jnp.mean((x @ w)[::-1] * x[:, :2])])
def test_what_is_known_to_mix_is_refused_without_a_word(loss):
    with pytest.raises(hs.Refusal):
        asked(dumped(loss, W, X[:, 0]), None)


def test_verify_catches_a_wrong_word_for_a_call():
    text, calls = dumped(mixing, W, X[:, 0]), {SOLVE: ((None, 0), 0)}
    assert len(asked(text, calls).plan.trusted) == 1
    verdict = asked(text, calls, verify)
    assert verdict.verdict == "not equivalent"
    assert "not separable" in verdict.why
    assert f"taken on trust: {SOLVE} at " in verdict.why


W_OF_CALLS, X_OF_CALLS = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(6, 12), (5, 6)])
)
BY_QR = lax.linalg.SvdAlgorithm.QR


def singular_values(matrix):
    return lax.linalg.svd(matrix, full_matrices=False, algorithm=BY_QR)[1]


def test_the_batch_as_one_matrix_is_refused():
    def loss(w, x):
        return jnp.sum(singular_values(jnp.tanh(x @ w)))

    with pytest.raises(hs.Refusal, match="along the example axis"):
        hs.grad(loss, statistics=hs.norms())(W_OF_CALLS, X_OF_CALLS)
