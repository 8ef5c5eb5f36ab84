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
