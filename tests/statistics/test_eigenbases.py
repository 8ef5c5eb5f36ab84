"""Second moments in eigenbases of Kronecker factors, against gradients of one example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.statistics.test_kronecker import (
    DENSE,
    IDS,
    ROWS_OF_X,
    SEQUENCE,
    TWICE,
    D,
    F,
    T,
    draw,
    sequence,
    squares,
    twice,
)


def squares_in(bases, own):
    """The mean of (P' g Q)**2, from gradients [B, *parameter] and Kronecker factors' bases."""

    def turned(g, basis):
        left, right = (np.asarray(side, np.float64) for side in basis)
        rank = max(left.ndim, right.ndim)
        left, right = (
            side if side.ndim == rank else np.eye(side.shape[-1]) for side in (left, right)
        )
        matrix = np.reshape(g, (*left.shape[:-2], left.shape[-1], right.shape[-1]))
        return (np.swapaxes(left, -1, -2) @ matrix @ right).reshape(g.shape)

    return {
        name: np.mean([turned(np.asarray(g, np.float64), bases[name]) ** 2 for g in rows], 0)
        for name, rows in own.items()
    }


def heads(p, x):
    rows = jnp.sin(x[:, None] + jnp.arange(T)[:, None])
    return jnp.mean(jnp.sum(jnp.sin(jnp.einsum("btd,hdf->bthf", rows, p["w"])), (1, 2, 3)))


def one_position(p, x):
    return jnp.mean(jnp.sum(jnp.sin(jnp.einsum("bd,hdf->bhf", x, p["w"])), (1, 2)))


HEADS = {"w": draw(2, D, F)}
EIGENBASES = {
    "heads": (heads, HEADS, ROWS_OF_X),
    "heads of one position": (one_position, HEADS, ROWS_OF_X),
    "dense": (squares, DENSE, ROWS_OF_X),
    "sequences": (sequence, SEQUENCE, IDS),
    "experts": (twice, TWICE, ROWS_OF_X),
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sequences", "experts", "heads")]


@pytest.mark.parametrize("name", ["dense", "heads of one position", *SLOW])
def test_second_moments_in_eigenbases(name):
    loss, params, x = EIGENBASES[name]
    bases = hs.eigenbases(hs.grad(loss, statistics=hs.kronecker_factors())(params, x)[1])
    own = jax.vmap(lambda row: jax.grad(loss)(params, row[None]))(x)
    found = jax.jit(lambda b: hs.grad(loss, statistics=hs.second_moment_in(b))(params, x)[1])(bases)
    expected = squares_in(bases, own)
    for key, value in expected.items():
        np.testing.assert_allclose(
            found[key], value, rtol=1e-4, atol=1e-5 * value.max(), err_msg=key
        )


def test_bases_are_of_factors_alone():
    with pytest.raises(TypeError, match=r"KroneckerFactors.*hlo_surgery\.kronecker_factors\(\)"):
        hs.eigenbases(DENSE)


def test_bases_of_another_gradient_are_wrong_use():
    basis = hs.eigenbases(hs.grad(squares, statistics=hs.kronecker_factors())(DENSE, ROWS_OF_X)[1])
    flipped = {**basis, "w": basis["w"]._replace(left=jnp.eye(F), right=jnp.eye(D))}
    flat = {**basis, "w": basis["w"]._replace(left=jnp.eye(2 * D), right=jnp.eye(F // 2))}
    long = {**basis, "w": basis["w"]._replace(left=jnp.ones((D + 1, D)))}
    swapped = {"w": basis["b"], "b": basis["w"]}
    with pytest.raises(ValueError, match="must be like the gradient"):
        hs.grad(squares, statistics=hs.second_moment_in(basis["w"]))(DENSE, ROWS_OF_X)
    factors = jax.tree.map(
        lambda own: hs.KroneckerFactors(*own), basis, is_leaf=lambda x: isinstance(x, tuple)
    )
    for wrong in (swapped, DENSE, flipped, flat, long, factors):
        with pytest.raises(ValueError, match="takes Eigenbases in place of each parameter"):
            hs.grad(squares, statistics=hs.second_moment_in(wrong))(DENSE, ROWS_OF_X)
