"""Custom calls that are declared by name, right and wrong, and LAPACK's, which are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.linalg import qr_multiply

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


WRONG = {
    "no axis of an operand with examples": {SCHUR: (None, 0)},
    "no axis of a result": {SCHUR: (0, None)},
    "no axis of the one that is used": {SCHUR: (0, [None, 0, 0, 0, 0, 0])},
    "another axis": {SCHUR: (1, [1, 1, 1, 1, None, None])},
}


@pytest.mark.parametrize("name", WRONG)
def test_axes_along_which_the_examples_do_not_lie_are_refused(name):
    with pytest.raises(hs.Refusal, match=r"test_declared_calls\.py:\d+: refused"):
        asked(dumped(by_features, W, X), WRONG[name])


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


def test_what_a_call_says_of_itself_is_no_word_of_its_user():
    text = dumped(by_features, W, X)
    axes = "hlo_surgery.example_axes = [[0, 0, 0, 0, 0, 0, 0]]"
    told = text.replace('{backend_config = ""', f'{{{axes}, backend_config = ""')
    assert told != text
    with pytest.raises(hs.Refusal):
        asked(told, None)


def test_verify_catches_a_wrong_word_for_a_call():
    text, calls = dumped(mixing, W, X[:, 0]), {SOLVE: ((None, 0), 0)}
    assert len(asked(text, calls).plan.trusted) == 1
    verdict = asked(text, calls, verify)
    assert verdict.verdict == "not equivalent"
    assert "not separable" in verdict.why
    assert f"taken on trust: {SOLVE} at " in verdict.why


def test_verify_catches_a_wrong_word_for_a_function():
    """Rows of the matrix are the examples, and each row of its factor is made of those before."""

    def loss(w, x):
        rows = 2 * jnp.eye(B) + 0.1 * jnp.tanh(x @ w)
        factor = partial(jax.lax.linalg.cholesky, symmetrize_input=False)
        return jnp.mean((hs.per_example_call(factor)(rows) ** 3).sum(1))

    arrays = jnp.cos(jnp.arange(12.0)).reshape(D, B), X[:, 0]
    text = dumped(loss, *arrays)
    assert asked(text, None).plan.trusted
    assert asked(text, None, verify).verdict == "not equivalent"


# A kernel's code is no text. So JAX 0.10 and 0.12 write a call to one.
TRITON = {"__gpu$xla.gpu.triton": "ir", "triton_kernel_call_ffi": "opaque"}
CODE = r"ML\EFR\0DMLIR\00\22\9C"


def launched(target, x):
    made = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return made(x, **{"name": "my_kernel", TRITON[target]: "CODE"})


def on_gpu(kernel):
    """The gradient's module, for a GPU, of a linear model on what a kernel makes of examples."""

    def loss(w, x):
        return jnp.mean(jnp.sum((kernel(x) @ w) ** 2, (1, 2)))

    text = dumped(loss, jnp.ones((16, 2)), jnp.ones((B, 16, 16)))
    assert text.count('"CODE"') == 1
    return text.replace('"CODE"', f'"{CODE}"')


@pytest.mark.parametrize("target", TRITON)
def test_a_triton_kernel_is_declared_by_its_own_name_or_its_targets(target):
    text = on_gpu(partial(launched, target))
    for name in ("my_kernel", target):
        module = asked(text, {name: (0, 0)})
        assert [each.call for each in module.plan.trusted] == ["my_kernel"]
        assert CODE in module.text()


@pytest.mark.parametrize("target", TRITON)
def test_a_triton_kernel_without_a_word_is_refused(target):
    with pytest.raises(hs.Refusal) as found:
        asked(on_gpu(partial(launched, target)), None)
    assert "hs.per_example_call" in found.value.help


W_OF_CALLS, X_OF_CALLS = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(6, 12), (5, 6)])
)
BY_QR = lax.linalg.SvdAlgorithm.QR


def matrices(w, x):
    return (x @ w).reshape(-1, 4, 3)


def singular_values(matrix):
    return lax.linalg.svd(matrix, full_matrices=False, algorithm=BY_QR)[1]


def by_singular_values(w, x):
    return jnp.mean(jnp.sum(singular_values(matrices(w, x)) ** 3, -1))


def times_factor(matrix):
    """Weights for an example, of a product with the orthogonal factor of its own matrix."""
    return qr_multiply(lax.stop_gradient(matrix), jnp.ones((2, 4)))[0]


def by_products(w, x):
    rows = matrices(w, x)
    return jnp.mean(jnp.sum(jax.vmap(times_factor)(rows) * rows[:, :2, :3], (1, 2)))


@pytest.mark.parametrize(
    ("loss", "call"), [(by_singular_values, "gesvd"), (by_products, "ormqr")], ids=["svd", "qr"]
)
def test_matrix_by_matrix_is_example_by_example(loss, call):
    gradient = jax.grad(loss)
    assert call in jax.jit(gradient).lower(W_OF_CALLS, X_OF_CALLS).as_text()
    found = hs.grad(loss, statistics=hs.per_example())(W_OF_CALLS, X_OF_CALLS)[1]
    alone = jnp.stack([gradient(W_OF_CALLS, x[None]) for x in X_OF_CALLS])
    np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-5)


def test_the_batch_as_one_matrix_is_refused():
    def loss(w, x):
        return jnp.sum(singular_values(jnp.tanh(x @ w)))

    with pytest.raises(hs.Refusal, match="along the example axis"):
        hs.grad(loss, statistics=hs.norms())(W_OF_CALLS, X_OF_CALLS)


FACTORISED = {
    "eigh": lambda m: jnp.linalg.eigh(m)[0],
    "cholesky": jnp.linalg.cholesky,
    "qr": lambda m: jnp.linalg.qr(m)[1],
    "solve": lambda m: jnp.linalg.solve(m, jnp.ones((*m.shape[:-1], 1))),
}


@pytest.mark.parametrize("target", ["gpu:h200", "tpu:v5e"])
@pytest.mark.parametrize("name", FACTORISED)
def test_a_matrix_of_the_batch_is_refused_for_other_devices(name, target):
    def loss(w, x):
        rows = jnp.tanh(x @ w)
        return jnp.sum(FACTORISED[name]((rows @ rows.T + jnp.eye(5))[None]) ** 2)

    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.norms(), target=target).explain(W_OF_CALLS, X_OF_CALLS)
