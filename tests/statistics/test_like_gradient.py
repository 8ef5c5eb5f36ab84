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


def along(direction):
    """The inner products of each example's own gradient."""
    each = jax.vmap(lambda row: jax.grad(loss)(P, row[None]))(X)
    return sum(each[name] @ direction[name] for name in P)


def test_the_order_of_a_dict_is_nothing():
    f = hs.grad(loss, statistics=hs.inner_products(dict(reversed(P.items()))))
    np.testing.assert_allclose(f(P, X)[1], along(P), rtol=1e-6)


@pytest.mark.parametrize(
    "direction",
    [[P["a"], P["b"]], [P["b"], P["a"]], {"c": P["a"], "d": P["b"]}, {"a": P}, P["a"], {}],
)
def test_a_direction_of_another_tree_is_refused(direction):
    f = hs.grad(loss, statistics=hs.inner_products(direction))
    wanted = r"must be like the gradient, .* has \['a'\], \['b'\]($|\. Several directions)"
    with pytest.raises(ValueError, match=wanted):
        f(P, X)


def test_bases_of_another_tree_are_refused():
    _, factors = hs.grad(loss, statistics=hs.kronecker_factors())(P, X)
    bases = hs.eigenbases(factors)
    f = hs.grad(loss, statistics=hs.second_moment_in([bases["a"], bases["b"]]))
    with pytest.raises(ValueError, match="second_moment_in takes must be like the gradient"):
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


def test_top_directions_of_a_dumped_gradient_are_named_as_its_outputs():
    text, arguments = dumped()
    module = hs.rewrite_module(
        text, batch={MANY: 0}, statistics={"top": hs.top_directions(1)}, loss_reduction="mean"
    )
    named = dict(zip((o.name for o in module.outputs), module.call(*arguments), strict=True))
    for i in range(MANY):
        (direction,) = (v for name, v in named.items() if f"[{i}]" in name and "top" in name)
        unit = (i + 1) / np.sqrt(sum(j**2 for j in range(1, MANY + 1)))
        np.testing.assert_allclose(direction, [unit], rtol=1e-5)
