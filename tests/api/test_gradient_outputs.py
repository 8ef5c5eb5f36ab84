"""Which outputs of a dump are gradients, and which the loss: by names, or by a question."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B = 4
DRAW = np.random.default_rng(0).normal


W, T, X = (jnp.asarray(DRAW(size=shape), jnp.float32) for shape in ((3, 5), (), (B, 3)))
P = {"w": W, "t": T}
M = {"m": jnp.ones(5)}


def hidden(p, x):
    return jnp.tanh(x @ p["w"]) * p["t"]


def loss(p, x):
    return jnp.mean(jnp.sum(hidden(p, x) ** 2, -1))


def with_aux(aux):
    return jax.value_and_grad(lambda p, x: (loss(p, x), aux(p, x)), has_aux=True)


def updated(p, x):
    gradient = jax.grad(loss)(p, x)
    return gradient, jax.tree.map(lambda p, g: p - 0.1 * g, p, gradient)


def averaged(p, ema, x, kept=0.9):
    return jax.grad(loss)(p, x), jax.tree.map(lambda a, b: kept * a + (1 - kept) * b, ema, p)


def normalised(p, stats, x, kept=0.9):
    h = x @ p["w"] - stats["m"]
    return jnp.mean(jnp.tanh(h) ** 2) * p["t"], {"m": kept * stats["m"] + (1 - kept) * h.mean(0)}


def like_a_weight(p, x):
    return {"correlation": x.T @ hidden(p, x)}


def dump(function, *arguments, debug_info=True):
    return jax.jit(function).lower(*arguments).as_text(debug_info=debug_info)


def taken(source, batch):
    plan = hs.modules.rewrite_module(source, batch=batch, statistics=hs.norms()).plan
    return [output.name for output in plan.outputs]


NAMES = {"[1]['t']", "[1]['w']"}
CLEAR = {
    "value_and_grad": (jax.value_and_grad(loss), (P, X), NAMES),
    "grad": (jax.grad(loss), (P, X), {"['t']", "['w']"}),
    "the gradient first": (
        jax.grad(lambda p, x: (loss(p, x), hidden(p, x)), has_aux=True),
        (P, X),
        {"[0]['t']", "[0]['w']"},
    ),
    "by name among metrics": (
        lambda p, x: {"loss": loss(p, x), "grads": jax.grad(loss)(p, x)},
        (P, X),
        {"['grads']['t']", "['grads']['w']"},
    ),
    "beside updated parameters": (updated, (P, X), {"[0]['t']", "[0]['w']"}),
    "beside new statistics": (
        jax.grad(normalised, has_aux=True),
        (P, M, X),
        {"[0]['t']", "[0]['w']"},
    ),
    "beside a metric like a parameter": (with_aux(like_a_weight), (P, X), NAMES),
}


@pytest.mark.parametrize(("function", "arguments", "names"), CLEAR.values(), ids=CLEAR)
def test_names_say_which_outputs_are_gradients(function, arguments, names):
    module = hs.modules.load(dump(function, *arguments))
    (batch,) = [p.name for p in module.arguments if p.shape == (B, 3)]
    assert set(taken(module, [batch])) == names


def merged(p, x):
    return {**jax.grad(loss)(p, x), "accuracy": jnp.mean(x)}


UNCLEAR = {
    "an average of parameters": (partial(averaged, kept=0.5), (P, P, X)),
    "new statistics": (jax.grad(partial(normalised, kept=0), has_aux=True), (P, M, X)),
    "the gradients again": (lambda p, x: (jax.grad(loss)(p, x), jax.grad(loss)(p, x)), (P, X)),
    "a metric in the gradient's tree": (merged, (P, X)),
    "the loss alone": (loss, (P, X)),
}


@pytest.mark.parametrize(("function", "arguments"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_stays_unclear_is_asked(function, arguments):
    source = dump(function, *arguments)
    with pytest.raises(
        ValueError, match=r"not clear.* name them in gradients=.*--gradient"
    ) as problem:
        taken(source, ["x"])
    assert all(port.name in str(problem.value) for port in hs.modules.load(source).outputs)


def stepped(p, x):
    value, gradient = jax.value_and_grad(loss)(p, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, p, gradient)


def partly_stepped(p, x):
    """A leaf that is frozen is returned as it came, and one is kept in another precision."""
    value, gradient = jax.value_and_grad(loss)(p, x)
    step = (gradient["w"].astype(jnp.bfloat16) + p["w"].astype(jnp.bfloat16)).astype(jnp.float32)
    return value, {"w": jax.lax.optimization_barrier(step), "t": p["t"]}


def stepped_by(update):
    """Also with a rate that is an argument, as a schedule's is."""

    def new(p, x):
        value, gradient = jax.value_and_grad(loss)(p, x)
        rate = 0.01 + 0.0 * jnp.sum(x)
        return value, jax.tree.map(lambda p, g: update(p, g, rate), p, gradient)

    return new


UPDATED = {
    "a step": stepped,
    "within jit": jax.jit(stepped),
    "one of two": partly_stepped,
    "with decay": stepped_by(lambda p, g, rate: (1 - 0.01) * p - 0.1 * g),
    "in one branch": stepped_by(
        lambda p, g, rate: jax.lax.cond(jnp.sum(p) > 0, lambda: p - 0.1 * g, lambda: p)
    ),
    "in some rows": stepped_by(lambda p, g, rate: p.at[:1].add(-0.1 * g[:1]) if p.ndim else p),
}


@pytest.mark.parametrize("step", UPDATED.values(), ids=UPDATED)
@pytest.mark.parametrize("debug_info", [True, False])
def test_updated_parameters_are_no_gradient(step, debug_info):
    source = dump(step, P, X, debug_info=debug_info)
    with pytest.raises(
        ValueError, match=r"\[1\] .*updated parameters, no gradient; name them in .*--gradient"
    ):
        taken(source, [2])
    plan = hs.modules.rewrite_module(
        source, batch=[2], statistics=hs.norms(), gradients=["[1]"], on_mixing="contribution"
    ).plan
    assert {output.name for output in plan.outputs} == NAMES


@pytest.mark.parametrize("named", [[1, 1], ["[1]['w']", -1], ["[1]", "[1]['w']"]])
def test_no_gradient_counts_twice(named):
    with pytest.raises(ValueError, match="more than once"):
        hs.modules.rewrite_module(
            dump(jax.value_and_grad(loss), P, X),
            batch=["x"],
            statistics=hs.norms(),
            gradients=named,
        )


def accuracy(p, x):
    return jnp.mean(jnp.where(x @ p["w"] > 0, 1.0, 0.0))


def with_metrics(p, x):
    value, gradient = jax.value_and_grad(loss)(p, x)
    found = {
        "accuracy": accuracy(p, x),
        "loss": value,
        "rate": 0.1,
        "decay": jnp.sum(p["w"] ** 2),
        "n": 4,
    }
    return {"metrics": found, "gradient": gradient}


def asked(function, **options):
    source = jax.jit(function).lower(P, X).as_text(debug_info=True)
    return hs.modules.rewrite_module(
        source, batch=["x"], statistics=hs.per_example_losses(), **options
    )


def test_two_that_the_examples_reach_are_asked_about():
    with pytest.raises(
        ValueError, match=r"not clear: .*'accuracy'.*'loss'.*loss=\.\.\. \(--loss\)"
    ) as problem:
        asked(with_metrics)
    assert str(problem.value).endswith("""such as loss="['metrics']['loss']\"""")
    assert not any(f"'{name}'" in str(problem.value) for name in ("rate", "decay", "n"))


@pytest.mark.parametrize("name", ["['metrics']['loss']", 4])
def test_the_one_that_is_named(name):
    module = asked(with_metrics, loss=name)
    own = jnp.sum(hidden(P, X) ** 2, -1)
    np.testing.assert_allclose(module.call(T, W, X)[-1], own, rtol=1e-5)
    assert "['metrics']['loss'] (the loss)" in str(module.plan)


WRONG = {
    "no such output": ("loss", "no output is named 'loss'"),
    "a gradient": ("['gradient']['w']", "named both as the loss and as a gradient"),
    "a tree": ("['metrics']", r"a tree of \['metrics'\]\['accuracy'\]: float32\[\], .*name one"),
    "an integer": ("['metrics']['n']", "one real number"),
}


@pytest.mark.parametrize(("name", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_loss(name, said):
    with pytest.raises(ValueError, match=said):
        asked(with_metrics, loss=name)


def test_a_penalty_that_each_microbatch_adds_is_no_updated_parameter():
    """The gradient of 0.5 |w|**2 is w, once for each step."""

    def penalised(w, x):
        return jnp.mean(jnp.tanh(x @ w)) + 0.5 * jnp.sum(w**2)

    def accumulated(w, x):
        def step(total, rows):
            return total + jax.grad(penalised)(w, rows), None

        return jax.lax.scan(step, jnp.zeros_like(w), x.reshape(2, B // 2, -1))[0] / 2

    gradient, found = hs.rewrite(accumulated, batch_argnums=1, statistics=hs.norms())(W, X)
    each = jax.vmap(lambda row: jax.grad(penalised)(W, row[None]))(X)
    np.testing.assert_allclose(gradient, each.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found, jnp.linalg.norm(each.reshape(B, -1), axis=1), rtol=1e-5)
