"""What is added to a program is for its target: no floats are wider than the program's, of which a
TPU has none of 64 bits, and no library's routines are another platform's.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of

B, T, D, WORDS = 4, 3, 8, 5


def loss(params, words, image):
    """A lookup, layers in a loop, a convolution, vectors and biases."""
    rows = params["table"][words]
    rows, _ = lax.scan(
        lambda x, w: (jnp.tanh(x @ w + params["bias"]), None), rows, params["layers"]
    )
    dims = ("NHWC", "HWIO", "NHWC")
    seen = lax.conv_general_dilated(image, params["kernel"], (1, 1), "SAME", dimension_numbers=dims)
    return jnp.mean((rows @ params["out"]).sum(1) + jnp.tanh(seen).sum((1, 2, 3)))


SHAPES = {
    "table": (WORDS, D),
    "layers": (2, D, D),
    "bias": (D,),
    "kernel": (3, 3, 1, 2),
    "out": (D,),
}
BYTES = jnp.dtype("float32").itemsize
STATISTICS = {
    "clipped": hs.clipped_mean(1.0),
    "squares of clipped": hs.clipped_second_moment(1.0),
    "factors": hs.kronecker_factors(),
    "gram": hs.gram(),
    "histogram": hs.histogram([-1, 0.0, 1]),
    "inner products": hs.inner_products(),
    "noise scale": hs.noise_scale(),
    "norms": hs.norms(),
    "largest": hs.norms("parameter", ord=float("inf")),
    "projected": hs.projected(3),
    "sign": hs.mean_sign(),
    "squares": hs.second_moment(),
    "tokens": hs.token_norms(),
    "directions": hs.top_directions(2),
    "variance": hs.variance(),
}


def sizes(name, dtype, strategy):
    """The sizes in bytes of all floats in the module with a statistic."""
    params = {key: jax.ShapeDtypeStruct(shape, dtype) for key, shape in SHAPES.items()}
    words = jax.ShapeDtypeStruct((B, T), "int32")
    image = jax.ShapeDtypeStruct((B, 4, 4, 1), dtype)
    how = {"strategy": strategy} if strategy else {}
    statistics = {"asked": STATISTICS[name]}
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=statistics, **how)
    values = [
        v for op in mlir.all_operations(f.module(params, words, image).code) for v in op.results
    ]
    return {dtype_of(v).itemsize for v in values if mlir.is_inexact(v)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", STATISTICS)
def test_no_float_is_wider(name, dtype):
    assert max(sizes(name, dtype, None)) == BYTES


@pytest.mark.parametrize("strategy", ["ghost", "lift", "loop"])
def test_nor_by_another_strategy(strategy):
    assert max(sizes("norms", "float32", strategy)) == BYTES


def accumulated(w, x):
    def step(total, part):
        return total + jax.grad(lambda w: jnp.mean(jnp.tanh(part @ w) ** 2))(w) / 2, None

    return lax.scan(step, jnp.zeros_like(w), x.reshape(2, -1, x.shape[1]))[0]


@pytest.mark.parametrize("function", [jax.grad(lambda w, x: jnp.mean((x @ w) ** 2)), accumulated])
def test_factorisations_are_those_of_the_target(function):
    eigenvalues = hs.sum_of(lambda g: jnp.linalg.eigvalsh(jnp.outer(g, g)))
    arrays = jax.ShapeDtypeStruct((3,), "float32"), jax.ShapeDtypeStruct((B, 3), "float32")
    f = hs.rewrite(function, batch_argnums=1, statistics=eigenvalues, target="tpu:v5e")
    text = f.module(*arrays).text()
    assert "Eigh" in text
    assert "lapack" not in text
