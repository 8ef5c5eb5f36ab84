"""Programs as deep as long: no analysis recurses over chains, nor walks shared operands again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.dataflow import vanishing

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


def test_each_link_of_a_chain_is_looked_into_once(monkeypatch):
    """Rows of constants, at each link of which it is asked whether they are the same for all
    examples.
    """
    asked = []
    looked_into = vanishing._uniform_if
    monkeypatch.setattr(
        vanishing, "_uniform_if", lambda *claim: asked.append(claim) or looked_into(*claim)
    )

    def loss(w, x):
        rows, z = jnp.arange(B, dtype=jnp.float32), jnp.tanh(x @ w)
        for _ in range(DEEP // 4):
            rows = jnp.sin(rows)
            z = z * rows[:, None]
        return jnp.mean(z)

    hs.explain(hs.grad(loss, statistics=hs.second_moment()), W, X)
    assert len(asked) < 5 * DEEP


def test_the_source_line_of_a_deep_call():
    """Each call of a function in another is a frame of what is inlined at last."""
    rows = f"tensor<{B}x3xf32>"
    head = f"-> {rows} {{"
    calls = "\n".join(
        f"func.func private @f{i}(%x: {rows}) {head}"
        f'%y = func.call @f{i + 1}(%x) : ({rows}) -> {rows} loc("m.py":{i}:1) return %y : {rows} }}'
        for i in range(DEEP)
    )
    module = f"""func.func @main(%w: tensor<3xf32>, %x: {rows}) -> tensor<3xf32> {{
      %y = func.call @f0(%x) : ({rows}) -> {rows} loc("main.py":7:1)
      %c = stablehlo.constant dense<0.0> : tensor<f32>
      %g = stablehlo.reduce(%y init: %c) applies stablehlo.add across dimensions = [0] :
        ({rows}, tensor<f32>) -> tensor<3xf32>
      return %g : tensor<3xf32> }}
      {calls}
      func.func private @f{DEEP}(%x: {rows}) {head}
        %y = stablehlo.custom_call @unknown(%x) : ({rows}) -> {rows} loc("m.py":{DEEP}:1)
        return %y : {rows} }}"""
    with pytest.raises(hs.Refusal, match=r"^main.py:7: refused"):
        hs.rewrite_module(module, batch=[1], gradients=[0], statistics=hs.second_moment())
