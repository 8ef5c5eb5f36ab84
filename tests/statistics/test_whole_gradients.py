"""Functions of one example's whole gradient, against NumPy on one gradient at a time in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.verification.verify import verify
from tests.statistics.statistic_models import MODELS, examples_in_float64, in_float64

STRATEGIES = ["auto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lift", "loop"))]


def found_in_float64(name, statistic, **how):
    model = MODELS[name]
    with jax.enable_x64(True):
        f = hs.grad(
            model.loss,
            batch_argnums=tuple(range(1, 1 + len(model.batch))),
            statistics=statistic,
            loss_reduction=model.reduction,
            **how,
        )
        params, batch = in_float64(model.params), in_float64(model.batch)
        return jax.tree.map(np.asarray, f(params, *batch)[1])


def flat(tree):
    return np.concatenate([g.reshape(len(g), -1) for g in jax.tree.leaves(tree)], axis=1)


def close(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(b).max())


def orthogonal(g):
    """As Muon's update, by steps of Newton and Schulz, of the last two dimensions; vectors stay as
    they are. For NumPy and JAX.
    """
    if g.ndim < 2:
        return g
    x = g / (1e-30 + (g**2).sum((-2, -1), keepdims=True)) ** 0.5
    for _ in range(5):
        x = 1.5 * x - 0.5 * x @ x.swapaxes(-2, -1) @ x
    return x


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["convolution", "scans"])
def test_orthogonalised_updates(name, strategy):
    """Of a scan over layers the function sees the whole stack, [layers, ...]."""
    _, examples = examples_in_float64(MODELS[name])
    found = found_in_float64(name, hs.sum_of(orthogonal), strategy=strategy)
    close(found, jax.tree.map(lambda g: sum(map(orthogonal, g)), examples))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["tied", "scans", "sum"])
def test_shampoo_of_whole_trees(name, strategy):
    """Preconditioners of each parameter, of gradients scaled by the norm of all."""

    def preconditioners(tree):
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(tree)))
        return jax.tree.map(lambda g: jnp.einsum("...j,...k->jk", g, g) / norm, tree)

    def of_examples(g, norms):
        rows = g.reshape(len(g), -1, g.shape[-1])
        return np.einsum("bij,bik,b->jk", rows, rows, 1 / norms)

    _, examples = examples_in_float64(MODELS[name])
    found = found_in_float64(name, hs.sum_of(preconditioners, "global"), strategy=strategy)
    norms = np.linalg.norm(flat(examples), axis=1)
    close(found, jax.tree.map(lambda g: of_examples(g, norms), examples))


def test_shampoo_of_single_examples_is_that_of_their_operands():
    """Of g = a' d it is a' (d d') a, which never makes g."""
    draw = np.random.default_rng(0).normal
    w, x = draw(size=(5, 3)), draw(size=(4, 2, 5))
    with jax.enable_x64(True):
        asked = hs.sum_of(lambda g: g @ g.T)
        f = hs.grad(lambda w, x: jnp.mean(jnp.sum(jnp.sin(x @ w), (1, 2))), statistics=asked)
        found = np.asarray(f(jnp.asarray(w), jnp.asarray(x))[1])
    d = np.cos(x @ w)
    np.testing.assert_allclose(found, np.einsum("bti,btf,bsf,bsj->ij", x, d, d, x), rtol=1e-10)


def test_examples_that_reach_no_row_count_with_zeros():
    """Rows of a table that nobody looks up have a gradient of zeros in every example."""
    found = found_in_float64("tied", hs.sum_of(lambda g: jnp.cos(g)))
    _, examples = examples_in_float64(MODELS["tied"])
    close(found, jax.tree.map(lambda g: np.cos(g).sum(0), examples))


def test_gradients_come_in_float32_and_counts_do_not_wrap():
    w, x = jnp.ones(3, jnp.bfloat16), jnp.ones((256, 3), jnp.bfloat16)
    kinds = []

    def positive(g):
        kinds.append(g.dtype)
        return g > 0

    asked = {
        "flags": hs.sum_of(positive),
        "bytes": hs.sum_of(lambda g: jnp.ones_like(g, jnp.int8)),
        "narrow": hs.sum_of(lambda g: g.astype(jnp.bfloat16)),
        "all": hs.sum_of(lambda g: (g > 0, g.astype(jnp.bfloat16)), "global"),
    }
    _, found = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=asked)(w, x)
    assert set(kinds) == {jnp.dtype(jnp.float32)}
    for each in jax.tree.leaves(found):
        np.testing.assert_array_equal(each, [256, 256, 256])
    assert found["narrow"].dtype == found["all"][1].dtype == jnp.float32


@pytest.mark.parametrize("per", ["parameter", "global"])
def test_a_function_may_close_over_traced_values(per):
    @jax.jit
    def found(w, x, bound):
        asked = hs.sum_of(lambda g: jnp.minimum(g, bound), per)
        return hs.grad(lambda w, x: jnp.mean(x @ w), statistics=asked)(w, x)[1]

    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(found(jnp.ones(2), x, 2.5), np.minimum(x, 2.5).sum(0))


def squared(p, x):
    return jnp.mean((x @ p["w"] + p["b"]) ** 2) / 2


def test_of_a_dumped_module_the_gradient_is_a_dict_by_output():
    p, x = {"w": jnp.ones(3), "b": jnp.zeros(())}, jnp.eye(4, 3) + 1
    text = jax.jit(jax.grad(squared)).lower(p, x).as_text(debug_info=True)
    asked = {
        "norms": hs.sum_of(
            lambda tree: {k: jnp.sqrt(jnp.sum(g**2)) for k, g in tree.items()}, "global"
        ),
        "top": hs.top_directions(2),
        "squares": hs.clipped_second_moment(0.5),
    }
    how = {"batch": ["x"], "statistics": asked}
    made = hs.rewrite_module(text, **how)
    names = [port.name for port in made.outputs[2:]]
    assert names[:2] == ["norms[\"['b']\"]", "norms[\"['w']\"]"]
    own = np.array([4.0, 4.0, 4.0, 3.0])
    norms = own.sum(), (own * np.linalg.norm(x, axis=1)).sum()
    np.testing.assert_allclose(made.call(*jax.tree.leaves(p), x)[2:4], norms, rtol=1e-6)
    assert verify(text, **how).verdict == "equivalent"
    assert [output.strategies["norms"] for output in made.plan.outputs] == ["loop", "loop"]


WRONG = {
    "no function": (lambda: hs.sum_of(3), TypeError, "takes a function"),
    "a prefix": (lambda: hs.sum_of(jnp.sum, {"w": 0}), ValueError, "'parameter' or per='global'"),
    "a tuple": (lambda: hs.sum_of(lambda g: (g, g)), TypeError, "returns one array"),
    "nothing": (lambda: hs.sum_of(lambda tree: {}, "global"), TypeError, "returns none"),
    "of": (lambda: hs.weighted_mean(jnp.sum, of="losses"), ValueError, "of='gram'"),
    "squares": (lambda: hs.weighted_second_moment(2.0), TypeError, "weighted_second_moment(lambda"),
    "a limit": (lambda: hs.clipped_second_moment(0), ValueError, "clipped_second_moment takes"),
    "k": (lambda: hs.top_directions(0), ValueError, "integer k >= 1"),
    "large k": (lambda: hs.top_directions(9), ValueError, "at least 9 examples"),
    "all pairs": (
        lambda: hs.weighted_mean(lambda gram: gram, of="gram"),
        ValueError,
        "one for each example",
    ),
}


@pytest.mark.parametrize(("made", "error", "said"), WRONG.values(), ids=WRONG)
def test_wrong_use(made, error, said):
    def asked():
        f = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=made())
        return f(jnp.ones(3), jnp.eye(4, 3))

    with pytest.raises(error) as problem:
        asked()
    assert said in str(problem.value)


@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 5))])
@pytest.mark.parametrize("name", ["mlp", "convolution", "scans", "sum"])
def test_top_directions_are_singular_vectors(name, k):
    found = found_in_float64(name, hs.top_directions(k))
    _, examples = examples_in_float64(MODELS[name])
    u, s, v = np.linalg.svd(flat(examples), full_matrices=False)
    signs = np.sign(u[np.abs(u).argmax(0), np.arange(len(s))])
    np.testing.assert_allclose(found.singular_values, s[:k], rtol=1e-9)
    np.testing.assert_allclose(flat(found.directions), (signs * v.T).T[:k], atol=1e-8)


def of_rows(x, k):
    """The directions of the rows of a matrix, which are the gradients of a linear loss."""
    f = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=hs.top_directions(k))
    return jax.tree.map(np.asarray, f(jnp.zeros(x.shape[1]), x)[1])


def test_of_dependent_examples_there_are_as_many_directions_as_they_span():
    rows = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    found = of_rows(rows[[0, 1, 0, 1, 1]], 4)
    assert (found.singular_values[:2] > 0).all()
    np.testing.assert_allclose(found.directions[:2] @ found.directions[:2].T, np.eye(2), atol=1e-5)
    np.testing.assert_array_equal(found.singular_values[2:], 0)
    np.testing.assert_array_equal(found.directions[2:], 0)
    nothing = of_rows(np.zeros((3, 4), np.float32), 2)
    assert not any(x.any() for x in nothing)


@pytest.mark.parametrize("scale", [1e-25, 1e25, np.nan])
def test_directions_out_of_the_range_of_floats_are_no_numbers(scale):
    found = of_rows(np.eye(3, dtype=np.float32) * np.float32(scale), 2)
    assert all(np.isnan(x).all() for x in found)


def test_directions_are_off_by_no_more_than_is_said():
    r = np.random.default_rng(0)
    u, v = (np.linalg.qr(r.normal(size=(n, 32)))[0] for n in (32, 400))
    x = ((u * np.geomspace(1, 1e-2, 32)) @ v.T).astype(np.float32)
    found, exact = of_rows(x, 32), np.linalg.svd(x.astype(np.float64), full_matrices=False)
    cosines = np.abs(np.sum(found.directions * exact[2], 1))
    # Values are 1.16 times apart, which magnifies it by 1 / (1.16**2 - 1).
    assert (1 - cosines < 3 * np.finfo(np.float32).eps * (exact[1][0] / exact[1]) ** 2).all()


def test_weights_of_inner_products_project_conflicts_away():
    """PCGrad, each against all others at once: weights solve what its projections leave."""

    def without_opposed(gram):
        cosines = jnp.minimum(gram, 0) / jnp.diagonal(gram)
        return 1 - (cosines - jnp.diag(jnp.diagonal(cosines))).sum(0)

    found = found_in_float64("mlp", hs.weighted_mean(without_opposed, of="gram"))
    _, examples = examples_in_float64(MODELS["mlp"])
    g = flat(examples)
    total = g.sum(0)
    for i, one in enumerate(g):
        for j, other in enumerate(g):
            product = one @ other
            if i != j and product < 0:
                total = total - product / (other @ other) * other
    np.testing.assert_allclose(flat(jax.tree.map(lambda x: x[None], found))[0], total / len(g))


@pytest.mark.parametrize("of", ["norms", "gram"])
def test_examples_that_are_not_finite_are_left_out(of):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    x[1, 2] = np.inf
    ones = {
        "mean": hs.weighted_mean(lambda taken: jnp.ones(len(taken)), nan_safe=True, of=of),
        "squares": hs.weighted_second_moment(
            lambda taken: jnp.ones(len(taken)) + 0 * taken.sum(), nan_safe=True, of=of
        ),
    }
    _, found = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=ones)(jnp.ones(3), x)
    rest = np.delete(x, 1, 0)
    np.testing.assert_allclose(found["mean"], rest.sum(0) / 4, rtol=1e-6)
    np.testing.assert_allclose(found["squares"], (rest**2).sum(0) / 4, rtol=1e-6)


def test_clipped_squares_of_dense_layers_hold_no_gradient_of_an_example():
    w, x = jnp.ones((40, 30)), jnp.ones((7, 40))
    asked = hs.clipped_second_moment(0.1)
    f = hs.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w)), statistics=asked)
    text = f.module(w, x).text()
    assert "7x40x30" not in text
    assert "while" not in text


def test_clipped_squares_are_in_range_wherever_they_are_numbers():
    """A weight that is as small as a gradient is large goes to the larger operand."""
    x = np.array([[1e18, 1e-18], [1e-12, 1e-12]], np.float32)
    f = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=hs.clipped_second_moment(1.0))
    squares = f(jnp.ones((2, 1)), x)[1]
    np.testing.assert_allclose(squares[:, 0], [0.5, 0.5e-24], rtol=1e-5)
