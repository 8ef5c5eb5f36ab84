"""Sharding constraints: set aside while a module is rewritten, and put back where they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.out_of_scope import (
    device_count,
    marks,
    put_back,
    set_aside,
    unmarked,
)
from tests.products import covering

MODULE = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(%x: tensor<8x6xf32>) -> (tensor<8x6xf32>, tensor<8x6xf32>) {{
  {body}
}}
"""
OF_AN_OP = """
  %0 = stablehlo.tanh %x : tensor<8x6xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {}]> : tensor<8x6xf32>
  %2 = stablehlo.negate %1 : tensor<8x6xf32>
  return %2, %x : tensor<8x6xf32>, tensor<8x6xf32>
"""
ONE_AFTER_THE_OTHER = """
  %0 = stablehlo.tanh %x : tensor<8x6xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {}]> : tensor<8x6xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"model"}]> : tensor<8x6xf32>
  %3 = stablehlo.negate %2 : tensor<8x6xf32>
  return %3, %3 : tensor<8x6xf32>, tensor<8x6xf32>
"""
OF_AN_ARGUMENT = """
  %0 = sdy.sharding_constraint %x <@mesh, [{"data"}, {}]> : tensor<8x6xf32>
  %1 = stablehlo.negate %0 : tensor<8x6xf32>
  return %1, %0 : tensor<8x6xf32>, tensor<8x6xf32>
"""
OF_A_CARRY = """
  %0 = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.while(%i = %0, %h = %x) : tensor<i32>, tensor<8x6xf32>
  cond {
    %2 = stablehlo.constant dense<3> : tensor<i32>
    %3 = stablehlo.compare LT, %i, %2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  } do {
    %2 = sdy.sharding_constraint %h <@mesh, [{"data"}, {}]> : tensor<8x6xf32>
    %3 = stablehlo.constant dense<1> : tensor<i32>
    %4 = stablehlo.add %i, %3 : tensor<i32>
    %5 = stablehlo.tanh %2 : tensor<8x6xf32>
    stablehlo.return %4, %5 : tensor<i32>, tensor<8x6xf32>
  }
  %6 = sdy.sharding_constraint %1#1 <@mesh, [{}, {"model"}]> : tensor<8x6xf32>
  %7 = stablehlo.negate %6 : tensor<8x6xf32>
  return %7, %7 : tensor<8x6xf32>, tensor<8x6xf32>
"""
BODIES = {
    "of an op": OF_AN_OP,
    "one after the other": ONE_AFTER_THE_OTHER,
    "of an argument": OF_AN_ARGUMENT,
    "of a carry, and of a loop's result": OF_A_CARRY,
}


def parsed(body):
    return mlir.parse(MODULE.format(body=body))


def operations(module):
    return mlir.nested_operations(module.operation)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_they_come_back_where_they_were(body):
    module = parsed(body)
    text = str(module)
    assert set_aside(module)
    assert "sdy.sharding_constraint" not in mlir.to_text(module)
    assert any(marks(op) for op in operations(module))
    module.operation.verify()
    put_back(module)
    assert str(module) == text
    assert not any(marks(op) for op in operations(module))
    module.operation.verify()


COMPLEX = """
  %c = stablehlo.constant dense<(0.0, {0})> : tensor<complex<f32>>
  return %x, %x : tensor<8x6xf32>, tensor<8x6xf32>
"""


def test_constants_of_any_kind_are_told_apart():
    """Complex ones too, which MLIR's Python bindings cannot hold."""

    def said(number):
        module = mlir.parse(MODULE.format(body=COMPLEX.format(number)))
        put_back(module)
        (op,) = (op for op in operations(module) if op.name == "stablehlo.constant")
        return unmarked(op)

    assert said(1.0) == said(1.0) != said(2.0)


def test_a_module_without_has_nothing_set_aside():
    module = parsed("return %x, %x : tensor<8x6xf32>, tensor<8x6xf32>")
    assert not set_aside(module)
    assert device_count(module) is None


def test_they_say_on_how_many_devices_they_are():
    assert device_count(parsed(OF_AN_OP)) == 8


def test_values_of_another_rank_have_none():
    """As where a carry has come to hold the examples apart."""
    module = parsed(OF_AN_OP)
    set_aside(module)
    (tanh,) = (op for op in operations(module) if op.name == "stablehlo.tanh")
    (name,) = marks(tanh)
    mark = str(tanh.attributes[name]).replace('[{"data"}, {}]', '[{"data"}, {}, {}]')
    tanh.attributes[name] = mlir.ir.Attribute.parse(mark, mlir.context())
    put_back(module)
    assert "sdy.sharding_constraint" not in mlir.to_text(module)


def test_what_nobody_uses_is_not_constrained():
    module = parsed(OF_AN_OP.replace("return %2, %x", "return %x, %x"))
    set_aside(module)
    mlir.run_passes(module, "func.func(trivial-dce)")
    put_back(module)
    assert "sdy.sharding_constraint" not in mlir.to_text(module)


def loss(params, x, y):
    """With constraints of an op, of a scan's carry and its weights, and of a parameter."""
    place = lax.with_sharding_constraint
    h = place(jnp.tanh(x @ place(params["w"], P())), P("data"))

    def layer(h, v):
        return place(jnp.tanh(place(h, P("data")) @ place(v, P())), P("data")), None

    return jnp.mean((lax.scan(layer, h, params["v"])[0] - y) ** 2)


def problem():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w": jax.random.normal(keys[0], (3, 3)),
        "v": jax.random.normal(keys[1], (2, 3, 3)),
    }
    return params, jax.random.normal(keys[2], (4, 3)), jax.random.normal(keys[3], (4, 3))


def of_each(params, x, y):
    gradient = jax.grad(lambda p, x, y: loss(p, x[None], y[None]))
    return jax.device_get(jax.vmap(gradient, (None, 0, 0))(params, x, y))


STATISTICS = {"second_moment": hs.second_moment(), "norms": hs.norms()}


@pytest.mark.parametrize(
    ("strategy", "kind"), covering(["auto", "lift", "loop"], [AxisType.Auto, AxisType.Explicit])
)
def test_statistics_are_those_of_each_example(strategy, kind):
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))):
        each = of_each(*problem())
    mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        f = hs.grad(
            loss if kind == AxisType.Auto else resharded,
            batch_argnums=(1, 2),
            statistics=STATISTICS,
            strategy=strategy,
        )
        gradient, found = jax.device_get(jax.jit(f)(*problem()))
        text = f.module(*problem()).text()
    assert text.count("sdy.sharding_constraint") >= 6
    norms = np.sqrt(sum((g**2).reshape(4, -1).sum(1) for g in jax.tree.leaves(each)))
    assert np.allclose(found["norms"], norms, rtol=1e-5)
    for name, g in each.items():
        assert np.allclose(gradient[name], g.mean(0), rtol=1e-5, atol=1e-6)
        assert np.allclose(found["second_moment"][name], (g**2).mean(0), rtol=1e-5, atol=1e-7)


def resharded(params, x, y):
    """The same on axes that are part of types."""
    place = jax.sharding.reshard
    h = place(jnp.tanh(x @ place(params["w"], P())), P("data"))

    def layer(h, v):
        return place(jnp.tanh(h @ v), P("data")), None

    return jnp.mean((lax.scan(layer, h, params["v"])[0] - y) ** 2)


def test_a_dump_keeps_them_and_runs_on_one_device():
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))):
        text = jax.jit(jax.grad(loss)).lower(*problem()).as_text(debug_info=True)
        each = of_each(*problem())
    module = hs.rewrite_module(text, batch=["x", "y"], statistics=hs.second_moment())
    assert "sdy.sharding_constraint" in module.text()
    again = hs.load(module.text())
    moments = again.call(*jax.tree.leaves(problem()))[2:]
    for found, g in zip(moments, jax.tree.leaves(each), strict=True):
        assert np.allclose(found, (g**2).mean(0), rtol=1e-5, atol=1e-7)


def test_explicit_axes_are_part_of_the_types_that_are_returned():
    """The gradient's are as JAX's own, and what is like it has the same."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    kinds = []

    def step(w, x):
        gradient = jax.grad(squares)(w, x)
        found, statistics = hs.grad(squares, statistics=STATISTICS)(w, x)
        kinds.extend(map(jax.typeof, (gradient, found, statistics["second_moment"])))
        return gradient

    with jax.set_mesh(mesh):
        w = jax.device_put(jnp.ones((3, 2)), P(None, "data"))
        jax.jit(step)(w, jax.device_put(jnp.ones((4, 3)), P("data")))
    assert [str(kind.sharding.spec) for kind in kinds] == ["P(None, 'data')"] * 3


def squares(w, x):
    return jnp.mean((x @ jax.sharding.reshard(w, P())) ** 2)
