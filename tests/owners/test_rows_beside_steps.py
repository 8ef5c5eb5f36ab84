"""What a loop over the examples takes of values that no example reaches, or carries on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

from .verdicts import reasons

B = 4
X = np.sin(np.arange(12, dtype=np.float32)).reshape(B, 3)
PARAMETERS = {
    "w": np.ones(3, np.float32),
    "rows": np.arange(1, B + 1, dtype=np.float32),
    "rate": np.float32(0.5),
}


def over_numbers(step):
    def loss(p, x):
        def go_on(i, state):
            carried, more = step(p, state[0], i)
            return carried, state[1] + x[i] @ p["w"] + more

        return lax.fori_loop(0, B, go_on, (jnp.float32(1), jnp.float32(0)))[1]

    return loss


def over_rows(step):
    def loss(p, x):
        def go_on(state, row):
            carried, more = step(p, state[0], row[1])
            return (carried, state[1] + row[0] @ p["w"] + more), None

        return lax.scan(go_on, (jnp.float32(1), jnp.float32(0)), (x, p["rows"]))[0][1]

    return loss


# The gradient of row i, or of step i's use of the rate, counts the examples behind it.
RUNNING = {
    "rows are added up": over_numbers(lambda p, c, i: (c + p["rows"][i], c)),
    "and decay": over_numbers(lambda p, c, i: (c * 0.5 + p["rows"][i], c)),
    "rows are scaled": over_numbers(lambda p, c, i: (c + p["rows"][i] * p["rate"], c)),
    "a rate is raised to powers": over_numbers(lambda p, c, i: (c * p["rate"], c)),
    "beside rows of a scan": over_rows(lambda p, c, row: (c * p["rate"], c)),
    "the row before": over_rows(lambda p, c, row: (row**2, c)),
}
# A penalty in a step has the same module as a term of that step's example.
BESIDE = {
    "a row of its own": over_rows(lambda p, c, row: (c, row**2)),
    "a row that is bent": over_rows(lambda p, c, row: (c, jnp.tanh(row))),
    "a row at its number": over_numbers(lambda p, c, i: (c, p["rows"][i] ** 2)),
    "a weight at its number": over_numbers(lambda p, c, i: (c, (i + 1) * p["rate"] ** 2)),
}


@pytest.mark.parametrize("loss", RUNNING.values(), ids=RUNNING)
def test_what_stands_for_all_that_come_after_is_nobodys(loss):
    assert any(reasons(jax.grad(loss), PARAMETERS, X))


@pytest.mark.parametrize("loss", BESIDE.values(), ids=BESIDE)
def test_what_no_example_reaches_is_not_the_steps_example(loss):
    with pytest.raises(hs.Refusal, match="no example"):
        hs.grad(loss, statistics=hs.norms(), loss_reduction="sum")(PARAMETERS, X)


def test_a_penalty_that_is_the_same_in_every_step_is_shared():
    loss = over_numbers(lambda p, c, i: (c, p["rate"] ** 2 / B))
    f = hs.grad(loss, statistics=hs.per_example(), loss_reduction="sum")
    own = f(PARAMETERS, X)[1]["rate"]
    np.testing.assert_allclose(own, np.full(B, 2 * PARAMETERS["rate"] / B), rtol=1e-6)


def test_rows_that_examples_reach_are_theirs():
    def loss(p, x):
        return lax.map(lambda e: jnp.tanh(e[0] @ p["w"] + e[1]), (x, p["rows"])).sum()

    f = hs.grad(loss, statistics=hs.per_example(), loss_reduction="sum")
    gradient, own = f(PARAMETERS, X)
    np.testing.assert_allclose(own["rows"], np.diag(gradient["rows"]), rtol=1e-6)


def test_a_state_of_numbers_scales_what_examples_reach():
    def loss(p, x):
        return lax.scan(lambda c, x: (c * 0.5, c * jnp.tanh(x @ p["w"])), 1.0, x)[1].sum()

    f = hs.grad(loss, statistics=hs.per_example(), loss_reduction="sum")
    rates = 0.5 ** np.arange(B)[:, None]
    want = rates * X / np.cosh(X @ PARAMETERS["w"])[:, None] ** 2
    np.testing.assert_allclose(f(PARAMETERS, X)[1]["w"], want, rtol=1e-5)
