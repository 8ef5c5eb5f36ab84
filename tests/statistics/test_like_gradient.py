"""What is handed over like the gradient is matched by its paths, and never by its order alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

X = jnp.array([[1.0, 2.0, 0.5], [3.0, -1.0, 2.0]])
P = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.array([-1.0, 0.5, 2.0])}
MANY = 12


def loss(params, x):
    return jnp.mean((x @ params["a"]) * 2 + jnp.tanh(x @ params["b"]))


@pytest.mark.parametrize(
    "direction",
    [[P["a"], P["b"]], [P["b"], P["a"]], {"c": P["a"], "d": P["b"]}, {"a": P}, P["a"], {}],
)
def test_a_direction_of_another_tree_is_refused(direction):
    f = hs.grad(loss, statistics=hs.inner_products(direction))
    wanted = r"must be like the gradient, .* has \['a'\], \['b'\]($|\. Several directions)"
    with pytest.raises(ValueError, match=wanted):
        f(P, X)


def dumped():
    """Gradients in a list: by their names, the one at 10 comes before the one at 2."""

    def of_list(params, x):
        return jnp.mean(sum((i + 1) * p * x for i, p in enumerate(params)))

    params, x = [jnp.float32(1)] * MANY, jnp.array([1.0, 2.0])
    gradient = jax.jit(jax.grad(of_list), keep_unused=True)
    return gradient.lower(params, x).as_text(debug_info=True), [*params, x]


def found(statistic):
    """The statistic's arrays, of example b's gradients (i + 1) x_b."""
    text, arguments = dumped()
    module = hs.rewrite_module(
        text, batch={MANY: 0}, statistics={"it": statistic}, loss_reduction="mean"
    )
    return [np.asarray(output).tolist() for output in module.call(*arguments)[MANY:]]


def test_a_function_of_a_dumped_gradient_takes_each_by_its_name():
    last = hs.sum_of(lambda tree: [tree[f"[{i}]"] for i in range(MANY)], per="global")
    assert found(last) == [3.0 * (i + 1) for i in range(MANY)]


def test_directions_of_a_dumped_gradient_have_its_names():
    last = {f"[{i}]": float(i == MANY - 1) for i in range(MANY)}
    assert found(hs.inner_products(last)) == [[12.0, 24.0]]
    with pytest.raises(ValueError, match="a dict by the names of its outputs"):
        found(hs.inner_products([0.0] * MANY))
