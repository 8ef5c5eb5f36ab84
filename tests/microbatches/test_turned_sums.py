"""The order of a loop's sums, turned against that of the outputs that are made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

STEPS, SIZE, LAYERS, WIDTH = 4, 4, 4, 64


def loss(params, x):
    for w in params[:-1]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x @ params[-1]) ** 2)


def accumulated(order):
    """Sums are carried in an order, one of them never changed, and scaled behind the loop."""

    def gradient(params, x):
        def step(carry, part):
            sums, kept = carry
            new = jax.grad(loss)(params, part)
            return ([s + new[i] for s, i in zip(sums, order, strict=True)], kept), None

        start = [jnp.zeros_like(params[i]) for i in order], params[0]
        (sums, kept), _ = lax.scan(step, start, x.reshape(STEPS, SIZE, WIDTH))
        found = dict(zip(order, sums, strict=True))
        return [found[i] / STEPS for i in range(LAYERS)], kept

    return lambda params, x: gradient(params, x)[0]


def arguments():
    r = np.random.default_rng(0)
    params = [r.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(LAYERS)]
    return params, r.normal(size=(STEPS * SIZE, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_sums_have_the_memory_of_outputs_in_whatever_order_they_are_carried(order):
    plain, args = accumulated(order), arguments()
    f = hs.rewrite(plain, batch_argnums=1, statistics=hs.norms())
    gradient, norms = f(*args)
    for found, wanted in zip(gradient, plain(*args), strict=True):
        np.testing.assert_array_equal(found, wanted)
    one = jax.vmap(jax.grad(lambda p, x: loss(p, x[None])), (None, 0))(*args)
    wanted = jnp.sqrt(sum(jnp.sum(g**2, (1, 2)) for g in one))
    np.testing.assert_allclose(norms, wanted, rtol=1e-5)
    if jax.default_backend() == "cpu":
        own, more = (
            jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes
            for fun in (accumulated((0, 1, 2, 3)), f)
        )
        assert more - own < WIDTH * WIDTH * 4
