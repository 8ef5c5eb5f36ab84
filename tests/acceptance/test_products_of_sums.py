"""Products of sums over the batch, and its constants, in a gradient's path: whose share they are.

What a gradient sums row by row has one reading, also where constants of the batch scale it. A
constant that is a term of the gradient has none, and a product of sums as many as it has factors:
(a b) c is a (b c).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.products import covering

B, D = 4, 3
DRAW = np.random.default_rng(0)
W, V = (np.float32(DRAW.normal(size=shape)) for shape in ((D, D), (D,)))
X, U = (np.float32(DRAW.normal(size=(B, D))) for _ in range(2))
M = np.float32(DRAW.uniform(0.5, 1.5, size=B))
LABELS = np.array([0, 1, 0, 2])


def outer(x, u):
    return jnp.einsum("bi,bj->ij", x, u)


def of_groups(x):
    return jax.ops.segment_sum(x.sum(1), LABELS, D)


def largest(m):
    return jnp.zeros(D) + jnp.max(m)


def in_parts(a):
    return a.reshape(2, 2, *a.shape[1:])


def trained(v, x):
    return jnp.sum(jnp.tanh(x * v))


def looped(step, rows):
    return lax.scan(lambda carry, row: (step(carry, row), None), jnp.zeros(D), rows)[0]


# Each is what a function returns as the gradient of v.
UNDIVIDED = {
    "a product": lambda v, x, u, m: x.sum(0) * m.sum(),
    "of three, from the left": lambda v, x, u, m: (x.sum(0) * m.sum()) * u.sum(),
    "of three, from the right": lambda v, x, u, m: x.sum(0) * (m.sum() * u.sum()),
    "of three, chosen by data": lambda v, x, u, m: (
        u.sum(0) * jnp.where(m.max() > 1, m.max(), lax.optimization_barrier(m.sum() * x.sum()))
    ),
    "of three, in a branch": lambda v, x, u, m: (
        x.sum(0) * lax.cond(m.max() > 1, lambda: m.sum() * u.sum(), lambda: m.max())
    ),
    "a power": lambda v, x, u, m: x.sum(0) ** 3,
    "divided": lambda v, x, u, m: x.sum(0) * u.sum() / m.sum(),
    "beside a sum": lambda v, x, u, m: (x**2).sum(0) - x.sum(0) ** 2,
    "a norm": lambda v, x, u, m: v * jnp.linalg.norm(outer(x, u)),
    "of contractions": lambda v, x, u, m: outer(x, u) @ x.sum(0),
    "of groups": lambda v, x, u, m: of_groups(x) * of_groups(u),
    "of parts, in a loop": lambda v, x, u, m: looped(
        lambda carry, rows: carry + rows.sum(0) * m.sum(), in_parts(x)
    ),
    "by a loop": lambda v, x, u, m: lax.fori_loop(0, 3, lambda _, c: c * m.sum(), x.sum(0)),
    "of an array": lambda v, x, u, m: jnp.prod(jnp.stack([x.sum(), m.sum()])) * u.sum(0),
    "cumulated": lambda v, x, u, m: jnp.cumprod(jnp.stack([x.sum(), m.sum()]))[1] * u.sum(0),
    "scattered": lambda v, x, u, m: jnp.stack([x.sum()]).at[0].multiply(m.sum()) * u.sum(0),
    "complex": lambda v, x, u, m: jnp.real(x.sum(0) * (1j * m.sum() + 1)),
    "what a sum starts from": lambda v, x, u, m: lax.reduce(x * v, m.max(), lax.add, (0,)),
    "what a sum of parts starts from": lambda v, x, u, m: lax.reduce(
        in_parts(x * v), m.max(), lax.add, (0, 1)
    ),
    "what parts are scattered onto": lambda v, x, u, m: (
        largest(m).at[in_parts(LABELS)].add(in_parts(x.sum(1)))
    ),
    "what a loop starts from": lambda v, x, u, m: lax.scan(
        lambda c, a: (c + a * v, None), largest(m), x
    )[0],
    "what a loop adds": lambda v, x, u, m: looped(
        lambda carry, row: carry + row * v + m.sum() * u.sum(), x
    ),
}


def rewritten(function, statistic, mode):
    return hs.rewrite(function, batch_argnums=(1, 2, 3), statistics=statistic, on_mixing=mode)(
        V, X, U, M
    )[1]


@pytest.mark.parametrize("mode", ["refuse", "contribution"])
@pytest.mark.parametrize("name", UNDIVIDED)
def test_what_is_nobodys_share_is_refused(name, mode):
    term = "term of the gradient, of which no example's share is known"
    with pytest.raises(hs.Refusal, match=f"{term}|meets each example's own values") as refused:
        rewritten(UNDIVIDED[name], hs.norms(), mode)
    assert refused.value.where.startswith(__file__)


OF_TRAINED = {
    "a product": lambda v, x, u, m: jnp.ones(D) * (trained(v, x) * trained(v, u)),
    "of three": lambda v, x, u, m: jnp.ones(D) * (x.sum() * (trained(v, x) * trained(v, u))),
    "a maximum": lambda v, x, u, m: v * jnp.max(jnp.tanh(x * v)),
    "a quotient": lambda v, x, u, m: v / trained(v, x),
}


@pytest.mark.parametrize("name", OF_TRAINED)
def test_what_parameters_reach_is_no_term_either(name):
    with pytest.raises(
        hs.Refusal, match="term of the gradient, of which no example's share is known"
    ):
        rewritten(OF_TRAINED[name], hs.norms(), "contribution")


# Each with what of it is example b's.
SHARES = {
    "divided by data": (lambda v, x, u, m: x.sum(0) / m.sum(), lambda v, x, u, m: x / m.sum()),
    "times what is no sum": (
        lambda v, x, u, m: x.sum(0) * lax.rsqrt(m.sum() * (u**2).sum()),
        lambda v, x, u, m: x / jnp.sqrt(m.sum() * (u**2).sum()),
    ),
    "rows times a product": (
        lambda v, x, u, m: jnp.sum(jnp.tanh(x * v) * (m.sum() * u.sum()), 0),
        lambda v, x, u, m: jnp.tanh(x * v) * m.sum() * u.sum(),
    ),
}


@pytest.mark.parametrize("mode", ["refuse", "contribution"])
@pytest.mark.parametrize("name", SHARES)
def test_what_is_scaled_by_constants_is_each_examples_own(name, mode):
    gradient, own = SHARES[name]
    np.testing.assert_allclose(
        rewritten(gradient, hs.per_example(), mode), B * own(V, X, U, M), rtol=1e-5
    )


def test_a_constant_passed_from_outside_is_known_to_all():
    """The way out that the refusal names."""

    def loss(w, x, u, total):
        return jnp.sum(w * (outer(x, u) * total))

    with pytest.raises(hs.Refusal, match="pass it as an argument of its own"):
        hs.grad(
            lambda w, x, u, m: loss(w, x, u, m.sum()),
            batch_argnums=(1, 2, 3),
            statistics=hs.norms(),
        )(W, X, U, M)
    found = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.per_example())(W, X, U, M.sum())[1]
    np.testing.assert_allclose(found, B * jnp.einsum("bi,bj->bij", X, U) * M.sum(), rtol=1e-5)


B_OF_SUMS = 4
X_OF_SUMS, Y, R = (
    np.float32(DRAW.normal(size=shape)) for shape in ((B_OF_SUMS,), (B_OF_SUMS,), (B_OF_SUMS, 3))
)
P = {"s": np.float32(0.7), "t": np.float32(1.3), "w": np.float32(DRAW.normal(size=3))}


def ratio(q, u):
    return jnp.sum(q) / jnp.sum(q**2) * jnp.sum(u**2)


def rows(p, r):
    return jnp.sum(r * p["w"], -1)


LOSSES = {
    "of two gradients": lambda p, x, y, r: ratio(x * p["s"], y * p["t"]) + jnp.sum(rows(p, r)),
    "of data": lambda p, x, y, r: (
        ratio(x, rows(p, r)) + jnp.mean(jnp.sum(p["w"] ** 2, -1)) + jnp.sum(p["s"] * p["t"] * y)
    ),
    "of one gradient": lambda p, x, y, r: (
        ratio(rows(p, r), rows(p, r)) + jnp.sum(p["s"] * x * p["t"])
    ),
    "products": lambda p, x, y, r: (
        jnp.sum(jnp.tanh(x * p["s"])) * jnp.sum(y * p["t"]) * jnp.sum(rows(p, r))
    ),
    "of columns": lambda p, x, y, r: (
        jnp.sum(jnp.sum(r * p["w"], 0) ** 2) / jnp.sum(x * p["s"]) ** 2 + jnp.sum(p["t"] * y)
    ),
}
STATISTICS = {
    "square": hs.second_moment(),
    "sign": hs.mean_sign(),
    "each": hs.per_example(),
    "norms": hs.norms(),
}


@pytest.mark.parametrize(("name", "reduction"), covering(list(LOSSES), ["mean", "sum"]))
def test_contributions_to_ratios(name, reduction):
    how = {"statistics": STATISTICS, "on_mixing": "contribution", "loss_reduction": reduction}
    found = hs.grad(LOSSES[name], batch_argnums=(1, 2, 3), **how)(P, X_OF_SUMS, Y, R)[1]
    copies = jax.tree.map(lambda a: jnp.broadcast_to(a, (B_OF_SUMS, *a.shape)), P)
    each = jax.grad(LOSSES[name])(copies, X_OF_SUMS, Y, R)
    assert_of(
        found,
        jax.tree.map(lambda g: np.float64(g) * (B_OF_SUMS if reduction == "mean" else 1), each),
    )


@pytest.mark.parametrize("divisor", [lambda y, r: jnp.sum(y), lambda y, r: jnp.sum(r, 0)])
def test_a_contraction_divided_by_a_sum_of_data(divisor):
    """Both are sums over the examples, and single products by example; only one of them is of the
    gradient.
    """

    def divided(w, x, y, r):
        return jnp.einsum("b,bi->i", x, r) / divisor(y, r)

    f = hs.rewrite(divided, batch_argnums=(1, 2, 3), statistics=STATISTICS)
    found = f(P["w"], X_OF_SUMS, Y, R)[1]
    assert_of(found, B_OF_SUMS * np.float64(X_OF_SUMS)[:, None] * R / divisor(Y, R))
    assert f.explain(P["w"], X_OF_SUMS, Y, R).outputs[0].strategies["square"] == "square"


def assert_of(found, each):
    square, sign = (jax.tree.map(lambda g, f=f: f(g).mean(0), each) for f in (np.square, np.sign))
    norms = np.sqrt(sum((g.reshape(B_OF_SUMS, -1) ** 2).sum(1) for g in jax.tree.leaves(each)))
    expected = {"square": square, "sign": sign, "each": each, "norms": norms}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), found, expected
    )
