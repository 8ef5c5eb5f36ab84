"""Rows of weights, and rows of examples: in a dump without the loss both may be all that is left of
a term, along a dimension whose size is a multiple of the batch's.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D, C = 4, 3, 2
UNSEEN = "rests on no example, and may have a term for each"


def drawn(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


X, W = drawn(B, D), drawn(D, C)


def refused(loss, params, *given, gradients=None, **options):
    """Whether no example has rows, and the terms of all would be shared."""
    text = jax.jit(jax.grad(loss, **options)).lower(params, *given).as_text(debug_info=True)
    with pytest.raises(hs.Refusal, match=UNSEEN):
        hs.rewrite_module(text, batch=["x"], statistics=hs.norms(), gradients=gradients)


def own_terms(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["w"]), -1))


MASKS = {
    "put side by side": lambda: jnp.concatenate([jnp.ones(3), jnp.zeros(1)]),
    "stacked": lambda: jnp.stack([0.5**i for i in range(B)]),
    "repeated": lambda: jnp.repeat(jnp.stack([1.0, 2.0]), 2),
    "tiled": lambda: jnp.tile(jnp.stack([1.0, -2.0]), B // 2),
    "set": lambda: jnp.ones(B).at[0].set(0.0),
    "added at a place": lambda: jnp.ones(B).at[2].add(1.0),
    "beside an index of nothing": lambda: MASKS["stacked"]() * jnp.zeros(()).at[...].add(1.0),
    "padded": lambda: jnp.pad(jnp.ones(3), (0, 1)),
    "multiplied on the way": lambda: jnp.cumprod(jnp.full(B, 0.9)),
    "combined on the way": lambda: lax.associative_scan(jnp.multiply, jnp.full(B, 0.9)),
    "of flags": lambda: jnp.concatenate([jnp.ones(3, bool), jnp.zeros(1, bool)]).astype(float),
}


@pytest.mark.parametrize("name", MASKS)
def test_rows_of_single_numbers_are_rows(name):
    """A linear term with a weight for each example."""

    def loss(p, x):
        return own_terms(p, x) + jnp.mean(MASKS[name]()[:, None] * (x @ W + p["b"]))

    refused(loss, {"w": drawn(D, C), "b": drawn(C)}, X, gradients=[0, 1])


def test_a_convolution_sums_what_lies_beside_the_examples():
    def convolved(images, kernel):
        dims = ("NCH", "OIH", "NCH")
        return lax.conv_general_dilated(images, kernel, (1,), "SAME", dimension_numbers=dims)

    def loss(p, x, noise):
        seen = jnp.tanh(convolved(x, p["k"])) + convolved(x, drawn(1, 1, 3))
        return jnp.mean(jnp.sum(seen + convolved(noise, p["k"]), (1, 2)))

    refused(loss, {"k": drawn(1, 1, 3)}, drawn(B, 1, 5), drawn(B, 1, 5))


@pytest.mark.parametrize("returned", ["one for each example", "a sum"])
def test_an_argument_is_no_parameter_since_something_else_has_its_shape(returned):
    def loss(p, x, mask):
        made = x @ W + p["b"]
        told = made if returned == "one for each example" else jnp.outer(jnp.ones(B), made.mean(0))
        return own_terms(p, x) + jnp.mean(mask * made), told

    params = {"w": drawn(D, C), "b": drawn(C)}
    refused(loss, params, X, drawn(B, C), gradients=[0, 1], has_aux=True)


def test_an_argument_is_no_parameter_since_the_examples_have_its_shape():
    def loss(p, x, noise):
        return own_terms(p, x) + jnp.mean(x @ W[:, 0] + p["b"] * jnp.sum(noise, -1))

    params = {"w": drawn(D, C), "b": np.float32(1)}
    refused(loss, params, X, drawn(B, D), gradients=[0, 1], argnums=(0, 1))


def log_volumes(p, x, scales):
    """Of a matrix for each example."""
    square = p["w"] @ p["w"].T
    volumes = jax.vmap(lambda s: jnp.linalg.slogdet(square + s * jnp.eye(len(square)))[1])
    return jnp.mean(volumes(scales[:, 0]))


def counted_log_volumes(p, x, scales):
    return log_volumes(p, x, 1.0 + jnp.arange(B)[:, None])


def solutions(p, x, scales):
    solve = jax.vmap(lambda s: jnp.linalg.solve(s * p["w"], p["m"]))
    return jnp.mean((x + solve(scales[:, 0])) @ drawn(x.shape[1]))


def eigenvalues(p, x, scales):
    square = p["w"] + p["w"].T
    largest = jax.vmap(lambda s: jnp.linalg.eigvalsh(square + s * jnp.diag(jnp.arange(B) + 1.0)))
    return jnp.mean(x[:, 0] + largest(scales[:, 0])[:, -1])


@pytest.mark.parametrize("term", [log_volumes, counted_log_volumes, solutions, eigenvalues])
def test_of_a_matrix_for_each_example_the_rows_are_no_examples(term):
    """As many examples as the matrix has rows."""

    def loss(p, x, scales):
        touched = jnp.sum(jnp.tanh(x @ p["w"]), -1) + jnp.tanh(x @ p["m"])
        return jnp.mean(touched) + term(p, x, scales)

    params = {"w": drawn(B, B) + 3 * np.eye(B, dtype=np.float32), "m": drawn(B)}
    refused(loss, params, drawn(B, B), np.abs(drawn(B, 1)))


@pytest.mark.parametrize("samples", [1, 2])
def test_right_hand_sides_side_by_side_are_no_rows_of_the_matrix(samples):
    size = samples * B

    def loss(p, x, noise):
        columns = noise.reshape(-1, size).T
        solved = jax.scipy.linalg.solve_triangular(p["w"], columns, lower=True).T
        moved = (x[:, None] + solved.reshape(noise.shape)) @ drawn(size)
        return jnp.mean(jnp.sum(jnp.tanh(x @ p["w"]), -1) + jnp.mean(moved, 1))

    params = {"w": drawn(size, size) + 3 * np.eye(size, dtype=np.float32)}
    refused(loss, params, drawn(B, size), drawn(B, samples, size))


@pytest.mark.parametrize("pick", ["diagonal", "einsum"])
def test_rows_that_meet_as_many_columns_may_be_the_examples(pick):
    def loss(p, x, noise):
        met = jnp.diag(noise @ p["w"]) if pick == "diagonal" else paired(noise, p["w"])
        touched = jax.nn.logsumexp(x @ p["w"], -1) + jnp.tanh(p["s"] * x[:, 0])
        return jnp.mean(touched + x[:, 1] + p["s"] * met)

    refused(loss, {"w": drawn(D, B), "s": np.float32(0.5)}, X, drawn(B, D))


def paired(rows, columns):
    return jnp.einsum("bd,db->b", rows, columns)


def test_rows_of_a_table_that_no_example_reaches_may_be_theirs():
    """Two for each."""

    def loss(p, x, weights):
        rows = (p["table"] @ p["v"]).reshape(B, 2, 2)
        return own_terms(p, x) + jnp.mean(x[:, 0] + jnp.sum(weights[:, :, None] * rows, (1, 2)))

    refused(loss, {"table": drawn(2 * B, 3), "v": drawn(3, 2), "w": drawn(D, C)}, X, drawn(B, 2))


def weighted_rows(p, x):
    return jnp.mean(jnp.arange(B) * (x @ W[:, 0] + p["e"] * p["s"]))


def weighted_looked_up(p, x):
    """Two of eight rows of a parameter for each example, which all examples reach as well."""
    taken = p["more"][np.arange(2 * B)[::-1] // 2]
    rows = (x @ W).ravel() + p["s"] * taken
    return jnp.mean(jnp.arange(2 * B) * rows) + jnp.mean(jnp.tanh(x[:, :1] * p["more"]))


def weighted_flat(p, x):
    """Two numbers of a parameter for each example, one after the other."""
    rows = (x @ W).ravel() + p["s"] * p["pairs"].ravel()
    touched = jnp.tanh(x[:, :1] * jnp.sum(p["pairs"]))
    return jnp.mean(jnp.arange(2 * B) * rows) + jnp.mean(touched)


@pytest.mark.parametrize("loss", [weighted_rows, weighted_looked_up, weighted_flat])
def test_as_many_rows_of_a_parameter_as_examples_may_be_theirs(loss):
    shapes = {"e": (B,), "s": (), "w": (D, C), "more": (2 * B,), "pairs": (B, 2)}
    params = {name: drawn(*shape) for name, shape in shapes.items()}
    asked = ["['s']", "['more']", "['pairs']"]
    refused(lambda p, x: loss(p, x) + own_terms(p, x), params, X, gradients=asked)


def orthogonal(w):
    return jnp.sum((w @ w.T - jnp.eye(len(w))) ** 2)


def along_a_vector(w):
    return jnp.sum((by_row(w).T @ w @ w.T) ** 2)


def weighted_by_rows(w):
    """A product with weights by row, of which a scale has the gradient."""
    return w[0, 0] * jnp.sum(by_row(w) * w**2)


def by_row(w):
    return np.linspace(1, 2, len(w), dtype=np.float32)[:, None]


def log_volume(w):
    """JAX permutes pivots in a loop of N steps."""
    return jnp.linalg.slogdet(w)[1]


def scales(w):
    """Of a normal distribution by its factor: the gradient is put on a diagonal."""
    return jnp.sum(jnp.log(jnp.abs(jnp.diag(w))))


def scales_of_a_factor(w):
    return jnp.sum(jnp.log(jnp.diag(jnp.linalg.cholesky(w @ w.T + jnp.eye(len(w))))))


def singular_values(w):
    """Ones are put on a diagonal."""
    return jnp.sum(jnp.linalg.svd(w, compute_uv=False))


ANY = [orthogonal, log_volume, scales, scales_of_a_factor]
# As many rows as examples, of which tables tell something, may be theirs.
OF_MORE = [along_a_vector, weighted_by_rows, singular_values]


@pytest.mark.parametrize(
    ("penalty", "size"), [*itertools.product(ANY, (B, 2 * B)), *((f, 2 * B) for f in OF_MORE)]
)
def test_weights_have_rows_of_their_own(penalty, size):
    """As many as a multiple of the examples."""
    keys = jax.random.split(jax.random.key(1))
    params = {
        "v": jax.random.normal(keys[0], (D, size)) / 2,
        "w": jax.random.normal(keys[1], (size, size)),
    }

    def loss(p, x):
        hidden = jnp.tanh(x @ p["v"])
        return jnp.mean(jnp.sum(jnp.tanh(hidden @ p["w"]), -1)) + penalty(p["w"])

    text = jax.jit(jax.grad(loss)).lower(params, X).as_text(debug_info=True)
    module = hs.rewrite_module(text, batch=["x"], statistics=hs.norms())
    one = jax.vmap(lambda x: jax.grad(loss)(params, x[None]))(X)
    expected = np.sqrt(sum(jnp.sum(g**2, axis=(1, 2)) for g in one.values()))
    np.testing.assert_allclose(module.call(*params.values(), X)[-1], expected, rtol=1e-4)


@pytest.mark.parametrize("penalty", [along_a_vector, weighted_by_rows])
def test_as_many_rows_as_examples_of_which_a_table_tells_may_be_theirs(penalty):
    def loss(p, x):
        return own_terms(p, x) + penalty(p["w"])

    refused(loss, {"w": drawn(B, B)}, drawn(B, B))
