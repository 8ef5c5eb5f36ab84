"""What is zero, whatever the arguments are."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize

ZERO = jnp.zeros(3)
ZEROS = {
    "a constant": lambda x: ZERO,
    "times anything": lambda x: ZERO * x,
    "anything times zero": lambda x: x * ZERO,
    "added up in a loop": lambda x: lax.fori_loop(0, 4, lambda i, c: c + ZERO, ZERO),
    "a running mean": lambda x: ZERO + (ZERO - ZERO) / 2,
    "parts of it": lambda x: jnp.where(x > 0, jnp.concatenate([ZERO, ZERO])[2:5], ZERO),
    "put in rows by a loop": lambda x: jnp.sum(lax.map(lambda _: ZERO, x), 0),
    "taken by number": lambda x: jnp.zeros((4, 3))[x.astype(int)][:, 0],
    "by branches": lambda x: lax.cond(x[0] > 0, lambda: ZERO * 2, lambda: ZERO) / 3,
}
OTHERS = {
    "an argument": lambda x: x,
    "zero and an argument": lambda x: ZERO + x,
    "a loop that starts elsewhere": lambda x: lax.fori_loop(0, 4, lambda i, c: c + ZERO, x),
    "a loop that adds": lambda x: lax.fori_loop(0, 4, lambda i, c: c + x, ZERO),
    "a loop that adds a number": lambda x: lax.fori_loop(0, 4, lambda i, c: c + 1.0, ZERO),
    "one branch": lambda x: lax.cond(x[0] > 0, lambda: ZERO, lambda: x),
    "zero by another": lambda x: x / (1 + ZERO),
    "chosen by itself": lambda x: jnp.where(ZERO > -1, x, ZERO),
    "a row put among zeros": lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].set(x[i]), ZERO),
    "an exponential": lambda x: jnp.exp(ZERO),
    "less than zero": lambda x: ZERO - x,
}


def returns_zero(function):
    module = mlir.parse(jax.jit(function).lower(ZERO).as_text())
    normalize(module)
    block = mlir.body(mlir.main_function(module))
    return vanishes(mlir.operands(mlir.return_operation(block))[0])


@pytest.mark.parametrize("function", ZEROS.values(), ids=ZEROS)
def test_zero(function):
    assert returns_zero(function)


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_not_known_to_be_zero(function):
    assert not returns_zero(function)
