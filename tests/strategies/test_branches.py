"""Branches: the second way to a norm, of squares out of range, holds nothing unless it is taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir

B, ROWS, COLUMNS = 2, 128, 128
COPY = ("stablehlo.convert", (1, ROWS, COLUMNS))


def loss(w, x, y):
    return jnp.sum((x @ w) * y)


def accumulated(w, x, y):
    def step(total, example):
        return total + jax.grad(loss)(w, *example), None

    return jax.lax.scan(step, jnp.zeros_like(w), (x[:, None], y[:, None]))[0]


def made(op, within=("stablehlo.while", "func.func")):
    """Names and shapes of what is made in an op, of regions within these ops alone."""
    for block in mlir.blocks(op) if op.name in within else ():
        for inner in mlir.operations(block):
            yield from ((inner.name, tuple(mlir.shape(result))) for result in inner.results)
            yield from made(inner, within)


@pytest.mark.parametrize(
    ("gradient", "strategy"), [(accumulated, "lift"), (jax.grad(loss), "loop")]
)
def test_no_copy_is_made_for_a_branch_not_taken(gradient, strategy):
    asked = {"statistics": hs.clipped_mean(1.0), "strategy": strategy, "loss_reduction": "sum"}
    f = hs.rewrite(gradient, batch_argnums=(1, 2), **asked)
    w, x, y = (np.ones(s, np.float32) for s in [(ROWS, COLUMNS), (B, 3, ROWS), (B, 3, COLUMNS)])
    main = mlir.main_function(f.module(w, x, y).code).operation
    assert COPY in set(made(main, ("stablehlo.case", "stablehlo.while", "func.func")))
    assert COPY not in set(made(main))
