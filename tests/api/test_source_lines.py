"""Which line of the user's a plan names: in the steps of a loop that of the step."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs


def layer(h, w):
    h = jnp.tanh(h @ w["a"])  # first
    return h @ w["b"], None  # second


def loss(params, x, step):
    return jnp.mean(jax.lax.scan(step, x, params)[0] ** 2)


def line_of(word):
    lines, first = inspect.getsourcelines(layer)
    return first + next(i for i, line in enumerate(lines) if line.endswith(f"# {word}\n"))


@pytest.mark.parametrize("step", [layer, jax.checkpoint(layer)])
def test_sites_in_a_scan_are_at_the_lines_of_its_step(step):
    params = {"a": jnp.ones((2, 4, 4)), "b": jnp.ones((2, 4, 4))}
    f = hs.grad(lambda p, x: loss(p, x, step), statistics=hs.norms())
    sites = {plan.name: plan.sites[0].where for plan in f.explain(params, jnp.ones((3, 4))).outputs}
    file = __file__
    assert sites == {"['a']": f"{file}:{line_of('first')}", "['b']": f"{file}:{line_of('second')}"}
