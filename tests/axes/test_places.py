"""Places: where examples lie is asked of each value, and not only found by unification.

Rows whose meeting with the examples `jax.jit` left out of a dump are no constant of all.
"""

from itertools import combinations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs


def given(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def turned(y):
    """[B * R], B = 2, with the rows of the examples by turns."""
    return y.reshape(2, 3).T.reshape(6)


def along_the_features(w, x, y):
    return jnp.mean(jnp.tanh(w * x[0, :3]) * y)


def along_the_features_by_number(w, x, y):
    return jnp.mean(jnp.tanh(w * lax.dynamic_index_in_dim(x, 0, 0, False)[:3]) * y)


def along_the_features_of_a_step(w, x, y):
    def step(h, t):
        return jnp.tanh(h * w + x[1, t] * y[t]), None

    return jnp.mean(lax.scan(step, jnp.zeros(()), jnp.arange(3))[0] * y)


def rows_of_one_as_rows_of_all(w, x, y):
    return jnp.mean(jnp.tanh(w * x[:2]) * y.reshape(2, 2).sum(1))


def beside_each_other(w, x, y):
    return jnp.mean(jnp.prod(jnp.tanh(w * jnp.stack([x, turned(y)], 1)), 1))


def written_over(w, x, y):
    both = lax.dynamic_update_slice(jnp.stack([x, x], 1), turned(y)[:, None], (0, 0))
    return jnp.mean(jnp.prod(jnp.tanh(w * both), 1))


def handed_on_in_place(w, x, y):
    carry, _ = lax.scan(lambda c, _: (turned(y), None), x, None, length=2)
    return jnp.mean(carry * jnp.tanh(w * x))


def handed_on_as_both(w, x, y):
    both = lax.fori_loop(0, 2, lambda i, c: (jnp.sin(c[0]),) * 2, (x, turned(y)))
    return jnp.mean(both[1] * jnp.tanh(w * turned(y)))


def behind_a_barrier(w, x, y):
    def step(carry, _):
        return lax.optimization_barrier(turned(y)), None

    return jnp.mean(lax.scan(step, x, None, length=2)[0] * jnp.tanh(w * x))


def data_that_an_example_chooses(w, x):
    rising = jnp.cumsum(x)

    def one(t):
        return jnp.tanh(w * x[t]) * lax.cond(x[t] > 0, lambda: rising[t], lambda: 0.0)

    return jnp.mean(lax.map(one, jnp.arange(4)))


ROWS, Y = given(6), given(6, seed=1)
MEETING = [
    (along_the_features, (given(3, 3), given(3, seed=1)), 1),
    (along_the_features, (given(3, 4), given(3, seed=1)), 1),
    (along_the_features_by_number, (given(3, 4), given(3, seed=1)), 1),
    (along_the_features_of_a_step, (given(3, 3), given(3, seed=1)), 1),
    (rows_of_one_as_rows_of_all, (given(4), given(4, seed=1)), 2),
    *((loss, (ROWS, Y), 3) for loss in (beside_each_other, written_over)),
    *((loss, (ROWS, Y), 3) for loss in (handed_on_in_place, handed_on_as_both, behind_a_barrier)),
    (data_that_an_example_chooses, (given(4),), 1),
]


def changed(batch, examples, rows):
    """The batch, with other numbers for some examples."""
    found = [np.array(x) for x in batch]
    for number, example in [(k, e) for k in range(len(found)) for e in examples]:
        own = slice(example * rows, (example + 1) * rows)
        found[number][own] = given(*found[number].shape, seed=7 + number)[own]
    return found


@pytest.mark.parametrize(("loss", "batch", "rows"), MEETING)
def test_examples_that_meet_are_refused(loss, batch, rows):
    """They do meet: of some two of them the second difference does not vanish."""
    gradient = jax.jit(jax.grad(loss))
    mixed = 0.0
    for one, other in combinations(range(len(batch[0]) // rows), 2):
        both = [(), (one,), (other,), (one, other)]
        a, b, c, d = (gradient(0.7, *changed(batch, some, rows)) for some in both)
        mixed = max(mixed, abs(float(a - b - c + d)))
    assert mixed > 1e-3
    axes = tuple(range(1, 1 + len(batch)))
    f = hs.grad(loss, batch_argnums=axes, statistics=hs.norms(), rows_per_example=rows)
    with pytest.raises(hs.Refusal):
        f(0.7, *batch)


B, D, C = 4, 3, 2


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


PARAMS = {"b": normal(C), "v": normal(D, C, seed=1)}
W, X = normal(D, C, seed=2), normal(B, D, seed=3)
KEY = np.array([0, 1], np.uint32)
TABLE = np.arange(B * C, dtype=np.float32).reshape(B, C)
UNSEEN = "rests on no example, and may have a term for each"


def own_terms(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["v"] + p["b"]), -1))


def drawn(key):
    return jax.random.bernoulli(key, 0.5, (B, C)).astype(float)


def masked(p, x, mask):
    """A term that is linear in b, so that its gradient needs the mask alone."""
    return jnp.mean(jnp.sum(mask * (x @ W + p["b"]), -1)) + own_terms(p, x)


def contracted(p, x, weights):
    """The same by a product: what lies row by row is contracted with ones."""
    return jnp.einsum("bc,bc->", weights, x @ W + p["b"]) / B + own_terms(p, x)


def beside_what_sorts(p, x, mask):
    """JAX lowers the indices of the largest too, which nothing uses."""
    return masked(p, x, mask) + jax.lax.top_k(p["b"], 1)[0][0] ** 2


def of_one_each(p, x, _):
    return jnp.sum(jnp.eye(B) * jnp.sum(x @ W + p["b"] ** 2, -1)) / B + own_terms(p, x)


def looked_up(p, x, groups):
    """A row of a parameter for each group."""
    return jnp.mean(jnp.sum(x @ W + p["v"][groups] ** 2, -1)) + own_terms(p, x)


def counted_in_a_loop(p, x, _):
    def add(i, total):
        return total + i * jnp.sum(x[i] @ W + p["b"] ** 2)

    return jax.lax.fori_loop(0, B, add, 0.0) / B + own_terms(p, x)


def of_some(p, x, mask):
    return jnp.mean(jnp.sum(mask[:, None] * (x @ W + p["b"]), -1)) + own_terms(p, x)


def mapped(p, x, weights):
    rows = jax.lax.map(lambda row: jnp.sum(row[1] * (row[0] @ W + p["b"])), (x, weights))
    return jnp.mean(rows) + own_terms(p, x)


def by_groups(p, x, weights):
    groups = jnp.sum(x @ W + p["b"], -1).reshape(2, 2).sum(1)
    return jnp.mean(weights[0] * groups) / 2 + own_terms(p, x)


def beside_a_tiled_parameter(p, x, weights):
    """B * C rows, along which the bias lies B times."""
    rows = (x @ W).ravel() + jnp.tile(p["b"], B) * jnp.sum(p["v"])
    return jnp.sum(weights.ravel() * rows) / B + own_terms(p, x)


HIDDEN = {
    "drawn": (lambda p, x, key: masked(p, x, drawn(key)), KEY),
    "given": (masked, TABLE),
    "a constant": (lambda p, x, _: masked(p, x, TABLE), KEY),
    "counted": (lambda p, x, _: of_some(p, x, jnp.arange(B) / B), KEY),
    "contracted": (contracted, TABLE),
    "in a loop": (mapped, TABLE),
    "by groups": (by_groups, TABLE),
    "beside what sorts": (beside_what_sorts, TABLE),
    "an identity": (of_one_each, KEY),
    "looked up": (looked_up, np.array([0, 1, 1, 0])),
    "counted in a loop": (counted_in_a_loop, KEY),
    "tiled": (beside_a_tiled_parameter, TABLE),
    "times a parameter": (lambda p, x, m: masked(p, x, m) + jnp.sum(m * p["b"] ** 2) / B, TABLE),
}


def dumped(function, given, **options):
    lowered = jax.jit(function, **options).lower(PARAMS, X, given)
    return lowered.as_text(debug_info=True)


@pytest.mark.parametrize(("loss", "given"), HIDDEN.values(), ids=HIDDEN)
def test_rows_that_may_be_the_examples_are_refused(loss, given):
    with pytest.raises(hs.Refusal, match=UNSEEN) as refused:
        hs.modules.rewrite_module(dumped(jax.grad(loss), given), batch=["x"], statistics=hs.norms())
    assert refused.value.where.startswith(__file__)
    assert "as a batch argument" in refused.value.help


def test_a_gradient_that_is_a_number_is_not_the_loss():
    def loss(p, x, mask):
        return masked(p, x, mask) + p["scale"] * own_terms(p, x)

    params = {**PARAMS, "scale": jnp.ones(())}
    text = jax.jit(jax.grad(loss)).lower(params, X, TABLE).as_text(debug_info=True)
    with pytest.raises(hs.Refusal, match=UNSEEN):
        hs.modules.rewrite_module(text, batch=["x"], statistics=hs.norms())


def test_rows_of_a_longer_parameter_may_be_the_examples():
    def loss(p, x):
        return jnp.mean(x @ W[:, 0] + p["e"][:B]) + jnp.sum(p["e"] ** 2) + jnp.mean(x @ p["w"])

    params = {"e": jnp.ones(B + 2), "w": jnp.ones(D)}
    text = jax.jit(jax.grad(loss)).lower(params, X).as_text(debug_info=True)
    with pytest.raises(hs.Refusal, match=UNSEEN):
        hs.modules.rewrite_module(text, batch=["x"], statistics=hs.norms(), gradients=[0, 1])


def test_what_was_exported_lacks_as_much():
    loss, given = HIDDEN["drawn"]
    exported = jax.export.export(jax.jit(jax.grad(loss)))(PARAMS, X, given)
    with pytest.raises(hs.Refusal, match=UNSEEN):
        hs.rewrite(exported.call, batch_argnums=1, statistics=hs.norms())(PARAMS, X, given)
    # What is traced here shows that the mask met x: row b of it is example b's.
    found = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(PARAMS, X, given)[1]
    own = jax.vmap(lambda x: jax.grad(own_terms)(PARAMS, x[None]))(X)["b"]
    np.testing.assert_allclose(found["b"], own + drawn(given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [masked, contracted])
def test_passed_as_a_batch_argument_they_are_the_examples(loss):
    names = ["x", loss.__code__.co_varnames[2]]
    text = dumped(jax.grad(loss), TABLE)
    module = hs.modules.rewrite_module(text, batch=names, statistics=hs.per_example())
    found = dict(
        zip([port.name for port in module.outputs], module.call(*call(TABLE)), strict=True)
    )
    one = jax.vmap(lambda x, m: jax.grad(own_of(loss))(PARAMS, x[None], m[None]))
    expected = one(X, TABLE)
    name = next(name for name in found if name.startswith("per_example") and "'b'" in name)
    np.testing.assert_allclose(found[name], expected["b"], rtol=1e-5)


def own_of(loss):
    """The loss of an example alone: with one row for B."""
    ratio = 1 if loss is masked else B
    return lambda p, x, m: ratio * (loss(p, x, m) - own_terms(p, x)) + own_terms(p, x)


def call(given):
    return jax.tree.leaves((PARAMS, X, given))


def beside_a_penalty(p, x, points):
    """Points that lie beside no example, as many or not."""
    return own_terms(p, x) + jnp.mean((points @ p["v"]) ** 2)


def test_points_beside_the_examples_are_a_constant_where_the_loss_is_returned():
    points = jnp.ones((B, D))
    of = {"batch": ["x"], "statistics": hs.norms()}
    alone = dumped(jax.grad(beside_a_penalty), points)
    with pytest.raises(hs.Refusal, match=UNSEEN) as refused:
        hs.modules.rewrite_module(alone, **of)
    assert "value_and_grad" in refused.value.help
    shown = hs.modules.rewrite_module(dumped(jax.value_and_grad(beside_a_penalty), points), **of)
    one = jax.vmap(lambda x: jax.grad(beside_a_penalty)(PARAMS, x[None], points))(X)
    expected = np.sqrt(sum(jnp.sum(g**2, axis=tuple(range(1, g.ndim))) for g in one.values()))
    np.testing.assert_allclose(shown.call(*call(points))[-1], expected, rtol=1e-5)
    found = hs.grad(beside_a_penalty, batch_argnums=1, statistics=hs.norms())(PARAMS, X, points)
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)


@pytest.mark.parametrize("shown", [lambda p, x: jnp.sum(p["v"] ** 2), lambda p, x: x @ p["v"]])
def test_another_output_is_no_loss(shown):
    both = lambda p, x, points: (jax.grad(beside_a_penalty)(p, x, points), shown(p, x))  # noqa: E731
    of = {"batch": ["x"], "statistics": hs.norms(), "gradients": ["[0]['b']", "[0]['v']"]}
    with pytest.raises(hs.Refusal, match=UNSEEN):
        hs.modules.rewrite_module(dumped(both, jnp.ones((B, D))), **of)


def of_parameters(p, x, _):
    """Contracts as many rows of a parameter as there are examples."""
    square = jnp.concatenate([p["v"], p["b"][None]])  # [B, C]
    return own_terms(p, x) + jnp.sum((square.T @ square - jnp.eye(C)) ** 2)


def linear(p, x, _):
    """A loss that is linear in its output: the bias has as much of each example."""
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["v"]) + p["b"], -1))


def decayed(p, x, _):
    return own_terms(p, x) + 0.1 * sum(jnp.sum(w**2) + jnp.sum(jnp.abs(w)) for w in p.values())


def bayesian(p, x, _):
    """A divergence of weights from the usual ones, linear in the logarithms of variances."""
    return own_terms(p, x) + 0.5 * (jnp.sum(p["v"] ** 2) + jnp.sum(jnp.exp(p["b"]) - p["b"] - 1))


def in_steps(p, x, _):
    """A penalty of so many steps that they are no examples."""
    step = lambda i, c: 0.5 * c + jnp.sum(p["b"] ** 2) + jnp.sum(p["v"] ** 2)  # noqa: E731
    return own_terms(p, x) + lax.fori_loop(0, B - 1, step, 0.0)


CONSTANTS = {
    "in steps": in_steps,
    "bayesian": bayesian,
    "parameters": of_parameters,
    "linear": linear,
    "decayed": decayed,
}


@pytest.mark.first(1)
@pytest.mark.parametrize("loss", CONSTANTS.values(), ids=CONSTANTS)
def test_what_is_no_row_of_an_example_is_a_constant(loss):
    points = jnp.sin(jnp.arange(B * D, dtype=float)).reshape(B, D)
    text = dumped(jax.grad(loss), points, keep_unused=False)
    asked = {"gradients": ["['b']", "['v']"], "statistics": hs.norms()}
    module = hs.modules.rewrite_module(text, batch=["x"], **asked)
    one = jax.vmap(lambda x: jax.grad(loss)(PARAMS, x[None], points))(X)
    expected = np.sqrt(sum(jnp.sum(g**2, axis=tuple(range(1, g.ndim))) for g in one.values()))
    arguments = {"p['b']": PARAMS["b"], "p['v']": PARAMS["v"], "x": X}
    given = [arguments.get(port.name, points) for port in module.arguments]
    np.testing.assert_allclose(module.call(*given)[-1], expected, rtol=1e-5)


def test_a_constant_of_each_part_of_the_batch_is_not_everybodys():
    """Gradients of four parts, each with a decay of its own; one that all have is everybody's."""

    def found(rates):
        def gradient(w, x):
            part = jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2))
            own = jax.vmap(part, (None, 0))(w, x.reshape(4, -1, 3))
            return jnp.mean(own + rates[:, None] * w, 0)

        return hs.rewrite(gradient, batch_argnums=1, statistics=hs.norms())(w, x)[1]

    w, x = jnp.ones(3), given(8, 3)
    with pytest.raises(hs.Refusal, match="this value has a row for each"):
        found(jnp.array([0.4, 0.0, 0.0, 0.0]))
    one = jax.vmap(jax.grad(lambda w, x: jnp.tanh(x @ w) ** 2), (None, 0))(w, x)
    np.testing.assert_allclose(found(jnp.full(4, 0.4)), np.linalg.norm(one + 0.4 * w, axis=1), 1e-5)
