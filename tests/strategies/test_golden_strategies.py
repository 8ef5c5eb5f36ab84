"""Golden IR of the strategies: where each fires, and where the nearest one to it must not."""

import jax.numpy as jnp
import pytest

import hlo_surgery as hs

# What contracts h [3, 4] and l [3, 5] over three examples.
SITE = (
    "%g = stablehlo.dot_general %h, %l, contracting_dims = [0] x [0] : "
    "(tensor<3x4xf32>, tensor<3x5xf32>) -> tensor<4x5xf32>"
)
HEAD = "%w: tensor<4x5xf32>, %h: tensor<3x4xf32>, %l: tensor<3x5xf32>"


def program(*ops, returned="g", kind="4x5xf32", arguments=HEAD):
    body = "\n".join(ops)
    return (
        f"func.func @main({arguments}) -> tensor<{kind}> {{ {body} \n return %{returned} : "
        f"tensor<{kind}> }}"
    )


def rewritten(text, statistic=None, strategy="auto", batch=(1, 2)):
    return hs.rewrite_module(
        text,
        batch=list(batch),
        statistics=statistic or hs.second_moment(),
        gradients=[0],
        loss_reduction="sum",
        strategy=strategy,
    )


def strategy_of(text, **options):
    (taken,) = rewritten(text, **options).plan.outputs[0].strategies.values()
    return taken


DENSE = program(SITE)
TRANSPOSED = program(
    SITE,
    "%t = stablehlo.transpose %g, dims = [1, 0] : (tensor<4x5xf32>) -> tensor<5x4xf32>",
    returned="t",
    kind="5x4xf32",
)
SCALED = program(SITE, "%s = stablehlo.multiply %g, %w : tensor<4x5xf32>", returned="s")
PADDED = program(
    SITE,
    "%z = stablehlo.constant dense<0.0> : tensor<f32>",
    "%p = stablehlo.pad %g, %z, low = [1, 0], high = [0, 0], interior = [0, 0] : "
    "(tensor<4x5xf32>, tensor<f32>) -> tensor<5x5xf32>",
    returned="p",
    kind="5x5xf32",
)
BIAS = program(
    "%z = stablehlo.constant dense<0.0> : tensor<f32>",
    "%g = stablehlo.reduce(%l init: %z) applies stablehlo.add across dimensions = [0] : "
    "(tensor<3x5xf32>, tensor<f32>) -> tensor<5xf32>",
    kind="5xf32",
)
SQUARED = {
    "dense": DENSE,
    "transposed": TRANSPOSED,
    "scaled": SCALED,
    "padded": PADDED,
    "bias": BIAS,
}

POSITIONS = program(
    "%g = stablehlo.dot_general %h, %l, contracting_dims = [0, 1] x [0, 1] : "
    "(tensor<3x2x4xf32>, tensor<3x2x5xf32>) -> tensor<4x5xf32>",
    arguments="%w: tensor<4x5xf32>, %h: tensor<3x2x4xf32>, %l: tensor<3x2x5xf32>",
)
MERGED_POSITIONS = program(
    "%hm = stablehlo.reshape %h : (tensor<3x2x4xf32>) -> tensor<6x4xf32>",
    "%lm = stablehlo.reshape %l : (tensor<3x2x5xf32>) -> tensor<6x5xf32>",
    "%g = stablehlo.dot_general %hm, %lm, contracting_dims = [0] x [0] : "
    "(tensor<6x4xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>",
    arguments="%w: tensor<4x5xf32>, %h: tensor<3x2x4xf32>, %l: tensor<3x2x5xf32>",
)
TWO_SITES = program(
    SITE,
    "%h2 = stablehlo.tanh %h : tensor<3x4xf32>",
    SITE.replace("%g", "%g2").replace("%h,", "%h2,"),
    "%s = stablehlo.add %g, %g2 : tensor<4x5xf32>",
    returned="s",
)
OFFSET = program(SITE, "%s = stablehlo.add %g, %w : tensor<4x5xf32>", returned="s")
PADDED_WITH_ONES = PADDED.replace("dense<0.0>", "dense<1.0>")
SUMMED_AGAIN = program(
    SITE,
    "%z = stablehlo.constant dense<0.0> : tensor<f32>",
    "%s = stablehlo.reduce(%g init: %z) applies stablehlo.add across dimensions = [0] : "
    "(tensor<4x5xf32>, tensor<f32>) -> tensor<5xf32>",
    returned="s",
    kind="5xf32",
)
REDUCED_ON_TOP_OF_ONE = BIAS.replace("dense<0.0>", "dense<1.0>")
NOT_SQUARED = {
    "positions are contracted too": POSITIONS,
    "positions are merged with examples": MERGED_POSITIONS,
    "there are two sites": TWO_SITES,
    "the tail adds an offset": OFFSET,
    "the tail pads with ones": PADDED_WITH_ONES,
    "the tail sums": SUMMED_AGAIN,
    "the site sums on top of one": REDUCED_ON_TOP_OF_ONE,
}


@pytest.mark.parametrize("text", SQUARED.values(), ids=SQUARED.keys())
def test_square_operands_fires(text):
    assert strategy_of(text) == "square"


@pytest.mark.parametrize("text", NOT_SQUARED.values(), ids=NOT_SQUARED.keys())
def test_square_operands_does_not_fire_when(text):
    assert strategy_of(text) != "square"
    with pytest.raises(ValueError, match="strategy='square' does not apply to second_moment of "):
        rewritten(text, strategy="square")


@pytest.mark.parametrize(
    "phi", [hs.mean_of(jnp.tanh), hs.per_example()], ids=["not factorable", "all gradients"]
)
def test_square_operands_does_not_fire_when_phi_does_not_factor(phi):
    assert strategy_of(DENSE, statistic=phi) != "square"
