"""Token norms have the positions' dimensions, however many there are: [B, *positions]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, DIMS = 4, ("NHWC", "HWIO", "NHWC")


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def dense(p, x):
    return x @ p["w"]


def looked_up(p, x):
    return p["w"][jnp.int32(jnp.abs(x[..., 0]) * 3) % 11]


def convolved(p, x):
    return lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", dimension_numbers=DIMS)


def length(x):
    return jnp.linalg.norm(x, axis=-1)


def patches(x):
    return lax.conv_general_dilated_patches(x, (3, 3), (1, 1), "SAME", dimension_numbers=DIMS)


CASES = {
    "no positions": (dense, (3, 5), (), length),
    "one dimension": (dense, (3, 5), (6,), length),
    "two dimensions": (dense, (3, 5), (6, 7), length),
    "three dimensions": (dense, (3, 5), (2, 3, 2), length),
    "a table by example": (looked_up, (11, 5), (), lambda x: 1.0),
    "a table by position": (looked_up, (11, 5), (6, 7), lambda x: 1.0),
    "a convolution": (convolved, (3, 3, 3, 5), (6, 7), lambda x: length(patches(x))),
}


@pytest.mark.parametrize(("layer", "weight", "positions", "first"), CASES.values(), ids=CASES)
def test_one_norm_for_each_position(layer, weight, positions, first):
    params, x = {"w": drawn(*weight), "b": drawn(5)}, drawn(B, *positions, 3)

    def loss(p, x, offset=0.0):
        return jnp.mean(jnp.sin(layer(p, x) + p["b"] + offset) ** 2)

    found = hs.grad(loss, statistics=hs.token_norms())(params, x)[1]
    share = B * length(jax.jit(jax.grad(loss, 2))(params, x, jnp.zeros((B, *positions, 5))))
    assert found["w"].shape == found["b"].shape == (B, *positions)
    np.testing.assert_allclose(found["b"], share, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found["w"], share * first(x), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("proxy", [hs.token_norms, hs.per_token_second_moment])
def test_sums_of_gradients_that_the_program_makes_one_by_one_have_no_positions(proxy):
    one = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2))
    mean = lambda w, x: jnp.mean(jax.vmap(one, (None, 0))(w, x), 0)  # noqa: E731
    f = hs.rewrite(mean, batch_argnums=1, statistics=proxy())
    with pytest.raises(hs.Refusal, match="makes each example's own"):
        f(drawn(3, 5), drawn(B, 6, 3))
