"""Programs as deep as long: no analysis recurses over chains, nor walks shared operands again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, DEEP = 6, 800
W, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(3, 2), (B, 3)])
)


def text(ops, returned):
    """A module of a gradient whose examples are weighted by what the ops make of one number in each
    of them.
    """
    return f"""
    func.func @main(%w: tensor<2xf32>, %x: tensor<{B}x2xf32>, %m: tensor<f32>) -> tensor<2xf32> {{
      %v = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<f32>) -> tensor<{B}xf32>
      {ops}
      %g = stablehlo.dot_general %{returned}, %x, contracting_dims = [0] x [0] :
        (tensor<{B}xf32>, tensor<{B}x2xf32>) -> tensor<2xf32>
      return %g : tensor<2xf32> }}"""


def chain(op, operands):
    return "\n".join(
        f"%v{i} = stablehlo.{op} {', '.join([f'%v{i - 1}' if i else '%v'] * operands)} : "
        f"tensor<{B}xf32>"
        for i in range(DEEP)
    )


@pytest.mark.parametrize(("op", "operands"), [("sine", 1), ("add", 2)])
def test_a_chain_beside_the_examples(op, operands):
    module = text(chain(op, operands), f"v{DEEP - 1}")
    plan = hs.rewrite_module(module, batch=[1], gradients=[0], statistics=hs.second_moment()).plan
    assert plan is not None


def indexed(w, x):
    def body(k, total):
        for _ in range(DEEP // 2):
            k = jnp.minimum(k + 1, k + 1) - 1
        return total + jnp.sum(jnp.tanh(lax.dynamic_index_in_dim(x, k, 0, False) @ w))

    return lax.fori_loop(0, B, body, 0.0) / B


def until(w, x):
    def going(a):
        size = jnp.sum(a**2)
        still = size > 1
        for _ in range(DEEP // 4):
            size = jnp.sin(size) + size
            still = still & (size > -1) & (size > -1)
        return still

    return jnp.mean(jnp.tanh(jax.vmap(lambda a: lax.while_loop(going, lambda a: a / 2, a))(x) @ w))


def test_a_chain_in_a_loop():
    found = hs.grad(until, statistics=hs.second_moment())(W, X)[1]
    expected = jnp.mean(jax.vmap(lambda a: jax.grad(until_of_one)(W, a))(X) ** 2, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def until_of_one(w, a):
    halved = lax.while_loop(lambda a: jnp.sum(a**2) > 1, lambda a: a / 2, a)
    return jnp.mean(jnp.tanh(halved @ w))


def test_an_index_behind_a_chain_is_refused():
    with pytest.raises(hs.Refusal):
        hs.grad(indexed, statistics=hs.second_moment())(W, X)
