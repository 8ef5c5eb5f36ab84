"""What the check of dumped gradients holds factors against."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tools.exactness.cases import Case
from tools.exactness.check import EXACT, of_factors
from tools.exactness.wide import in_float64

B = 5


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def loss(w, x):
    """With bfloat16 from which gradients are made, and a constant that is written as its bits."""
    made = jnp.max((x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32), 1)
    return jnp.mean(jnp.tanh(made))


def case_of(function, *arrays):
    text = jax.jit(function).lower(*arrays).as_text()
    return Case(text, list(arrays), {1: 0}, B, [0], "mean", "separable", 0.05)


@pytest.fixture
def case():
    draw = np.random.default_rng(0)
    w, x = draw.normal(size=(7, 4)), draw.normal(size=(B, 7))
    return case_of(jax.grad(loss), w.astype(np.float32), x.astype(np.float32))


def test_factors_of_a_program_with_bfloat16(case):
    verdict = of_factors(case)
    assert verdict.startswith(f"{EXACT}: 1 of 1, positions 1,"), verdict


def test_a_program_in_float64_is_the_same_with_no_narrow_floats(case):
    found = in_float64(case)
    assert "0xFFF0000000000000" in found.text
    assert not any(f"{kind}>" in found.text for kind in ("bf16", "f16", "f32"))
