"""Rows of one example, taken out of operands wherever they lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.module import load
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.terms.axes import Labelled
from hlo_surgery.passes.terms.kept_examples import kept_operands

B, PARTS = 6, 3


def contribution(kernel, images):
    layout = ("NHWC", "HWIO", "NHWC")
    made = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=layout)
    return jnp.mean(jnp.sum(jnp.tanh(made) ** 2, (1, 2, 3)))


def accumulated(kernel, images):
    def step(total, part):
        return total + jax.grad(contribution)(kernel, part) / PARTS, None

    parts = images.reshape(PARTS, B // PARTS, *images.shape[1:])
    return lax.scan(step, jnp.zeros_like(kernel), parts)[0]


@pytest.mark.parametrize(
    ("window", "image"),
    [
        pytest.param(2, (3, 2), id="as wide as the image"),
        pytest.param(3, (2, 2), id="wider than the image"),
        pytest.param(2, (5, 4), id="smaller than the image"),
    ],
)
def test_windows_of_any_size_leave_examples_rows_apart(window, image):
    """Shardy's rule does not say what such a window's dimensions count by, and need not."""
    draw = np.random.default_rng(0)
    kernel = jnp.asarray(draw.normal(size=(window, window, 2, 2)), jnp.float32)
    images = jnp.asarray(draw.normal(size=(B, *image, 2)), jnp.float32)
    f = hs.rewrite(accumulated, batch_argnums=1, statistics=hs.gram())
    own = [jax.grad(contribution)(kernel, images[b : b + 1]).ravel() for b in range(B)]
    wanted = np.stack(own) @ np.stack(own).T
    np.testing.assert_allclose(f(kernel, images)[1], wanted, rtol=1e-4, atol=1e-4 * wanted.max())


def test_the_factor_that_reaches_all_places_tells_whose_a_product_is():
    """The first factor has rows of nobody where the second one has other examples in each half."""
    draw = np.random.default_rng(0)
    w, x = (np.float32(draw.normal(size=size)) for size in ((3, 3), (4, 3)))
    others = (0, 1), (2, 3)

    def gradient(w, x):
        h, g = jnp.tanh(x @ w), jnp.cos(x @ w)
        halves = jnp.stack([jnp.concatenate([g, g[np.array(own)]]) for own in others])
        rows = jnp.concatenate([h, w[:2]])
        return lax.dot_general(rows, halves, (((0,), (1,)), ((), ()))) / len(x)

    def alone(b):
        h, g = jnp.tanh(x[b] @ w), jnp.cos(x[b] @ w)
        beside = jnp.stack([sum((w[i] for i, o in enumerate(own) if o == b), h) for own in others])
        return jnp.einsum("sd,e->dse", beside, g)

    _, each = hs.rewrite(gradient, batch_argnums=1, statistics=hs.per_example())(w, x)
    np.testing.assert_allclose(each, [alone(b) for b in range(4)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("second", "told"), [([[0, 1, 2], [2, 0, 1]], True), ([[0, 1, 2], [0, 1, 2]], False)]
)
def test_a_product_of_two_examples_is_of_neither(second, told):
    product = lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((0,), (0,))))  # noqa: E731
    shape = jax.ShapeDtypeStruct((2, 3), np.float32)
    code = mlir.clone(load(jax.jit(product).lower(shape, shape).as_text()).code)
    sharding_rules.populate(code)
    ops = mlir.operations(mlir.body(mlir.main_function(code)))
    (dot,) = (op for op in ops if op.name == "stablehlo.dot_general")
    rows = [np.array(own, np.int32) for own in ([[0, 1, 2], [2, 0, 1]], second)]
    operands = [Labelled(Labels(((2,), (3,)), own)) for own in rows]
    kept = kept_operands(dot, operands, frozenset())
    assert [x.is_weighted for x in kept or []] == ([True, False] if told else [])
