"""How statistics are asked for: arrays' names, groups of outputs, wrong use, per-token proxies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.statistics.statistic_models import MODELS, draws, in_float64, tokens

B = 3
MODULE = """
func.func @main(%v: tensor<4xf32>, %w: tensor<2x2xf32>, %x: tensor<3x4xf32>, %y: tensor<3x2x2xf32>)
    -> (tensor<4xf32> {jax.result_info = "v"}, tensor<2x2xf32> {jax.result_info = "w"}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %gx = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<3x4xf32>, tensor<f32>) -> tensor<4xf32>
  %gy = stablehlo.reduce(%y init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<3x2x2xf32>, tensor<f32>) -> tensor<2x2xf32>
  return %gx, %gy : tensor<4xf32>, tensor<2x2xf32>
}"""
DRAW = draws(0)
X, Y = DRAW(B, 4), DRAW(B, 2, 2)


def rewritten(statistics, batch=(2, 3), **options):
    return hs.modules.rewrite_module(
        MODULE, batch=list(batch), statistics=statistics, loss_reduction="sum", **options
    )


def outputs(statistics):
    """What the module returns beyond its gradients, by name."""
    module = rewritten(statistics)
    results = module.call(np.zeros(4, "f"), np.zeros((2, 2), "f"), X, Y)
    return {
        port.name: np.asarray(r) for port, r in zip(module.outputs[2:], results[2:], strict=True)
    }


def test_one_statistic_goes_by_its_own_name():
    assert list(outputs(hs.norms(ord=1))) == ["norms(ord=1)"]
    assert list(outputs(hs.clipped_mean(2.0))) == ["clipped_mean(2.0)/v", "clipped_mean(2.0)/w"]


def squares(p, x):
    return jnp.mean(jnp.sum((x @ p["w"]) ** 2, -1))


def graded(statistic, size=B):
    """The statistic of a small model with one parameter."""
    return hs.grad(squares, statistics=statistic)(
        {"w": np.ones((4, 2), "f")}, np.ones((size, 4), "f")
    )


WRONG = {
    "an unknown per": (
        lambda: rewritten(hs.norms("layer")),
        "it is 'global', 'parameter', or a dict",
    ),
    "an unknown output": (lambda: rewritten(hs.norms({"a": ["v", "u"]})), "no output is named 'u'"),
    "an output left out": (
        lambda: rewritten(hs.gram({"a": ["v"]})),
        "must hold every gradient once",
    ),
    "no prefix": (lambda: graded(hs.norms({"u": 0})), "no pytree prefix of the gradient"),
    "a leaf that is none": (
        lambda: graded(hs.norms({"u": 0, "w": 1})),
        r"expected keys: \['u', 'w'\]",
    ),
    "an unknown direction": (lambda: hs.inner_products("median"), "'mean' or a pytree"),
    "no loss": (lambda: graded(hs.per_example_losses()), "needs a module that returns its loss"),
    "variance of one": (lambda: graded(hs.variance(), 1), "at least 2 examples; the batch has 1"),
    "ord of zero": (lambda: hs.norms(ord=0), "takes ord > 0"),
    "a power of zero": (lambda: hs.mean_power(0), "integer k >= 1"),
    "a negative threshold": (lambda: hs.mean_of_clipped_entries(-1.0), "positive threshold"),
    "no max_norm": (lambda: hs.clipped_mean(0.0), "positive max_norm"),
    "a constant polynomial": (lambda: hs.polynomial([1.0]), "at least two"),
    "an infinite coefficient": (lambda: hs.polynomial([1, float("inf")]), "finite number"),
    "falling edges": (lambda: hs.histogram([0.0, 1.0, 0.5]), "at least two increasing edges"),
    "a weight": (lambda: graded(hs.weighted_mean(lambda n: 2.0)), "w made 2.0"),
    "one weight for all": (lambda: graded(hs.weighted_mean(jnp.sum)), "one for each example"),
}


@pytest.mark.parametrize(("call", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_use(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def shares(p, x):
    """Each position's share of each example's gradient, [B, L, *parameter], by copies."""

    def alone(copies, row):
        h = jnp.tanh(jnp.einsum("ld,ldf->lf", row, copies["w"]))
        return jnp.mean(jnp.sum(jnp.sin(jnp.einsum("ld,ldf->lf", h, copies["v"])) ** 2, -1))

    copies = jax.tree.map(lambda w: jnp.stack([w] * x.shape[1]), p)
    return jax.vmap(jax.grad(alone), (None, 0))(copies, x)


def test_per_token_proxies():
    model = MODELS["tokens"]
    asked = {"squares": hs.per_token_second_moment(), "norms": hs.token_norms()}
    _, found = hs.grad(tokens, statistics=asked)(model.params, *model.batch)
    with jax.enable_x64(True):
        each = jax.tree.map(np.asarray, shares(in_float64(model.params), *in_float64(model.batch)))
    for name, share in each.items():
        np.testing.assert_allclose(found["squares"][name], np.sum(share**2, 1).mean(0), rtol=1e-4)
        np.testing.assert_allclose(
            found["norms"][name], np.linalg.norm(share, axis=(2, 3)), rtol=1e-4
        )


@pytest.mark.parametrize("statistic", [hs.per_token_second_moment(), hs.token_norms()])
def test_per_token_proxies_are_refused_where_a_gradient_is_no_single_contraction(statistic):
    model = MODELS["tied"]
    f = hs.grad(model.loss, batch_argnums=(1, 2), statistics=statistic)
    with pytest.raises(hs.Refusal, match="needs a single contraction over examples and positions"):
        f(model.params, *model.batch)
