"""Which outputs of a dump are gradients: what their names say, and a question where they do not."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hlo_surgery as hs
from hlo_surgery.rewriting.pipeline import explain_module
from hlo_surgery.verification.verify import verify

B = 4
DRAW = np.random.default_rng(0).normal


class Layer(NamedTuple):
    w: Any
    t: Any


@jax.tree_util.register_dataclass
@dataclass
class Weights:
    w: Any
    t: Any


W, T, X = (jnp.asarray(DRAW(size=shape), jnp.float32) for shape in ((3, 5), (), (B, 3)))
P = {"w": W, "t": T}
M = {"m": jnp.ones(5)}
SCALE = jnp.float32(2.0)


def hidden(p, x):
    return jnp.tanh(x @ p["w"]) * p["t"]


def loss(p, x):
    return jnp.mean(jnp.sum(hidden(p, x) ** 2, -1))


def with_aux(aux):
    return jax.value_and_grad(lambda p, x: (loss(p, x), aux(p, x)), has_aux=True)


def metrics(p, x):
    return {"logits": hidden(p, x), "t": jnp.mean(x), "peak": jnp.max(x, 0)}


def of_layer(p, x):
    return loss(p._asdict() if isinstance(p, Layer) else {"w": p.w, "t": p.t}, x)


def listed(p, x):
    return loss(dict(zip("wt", p, strict=True)), x)


def unused(p, x):
    return loss(p, x) + 0 * jnp.sum(p["extra"])


def of_state(s, x):
    return jax.value_and_grad(loss)(s["params"], x)


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
    plan = hs.rewrite_module(source, batch=batch, statistics=hs.norms()).plan
    return [output.name for output in plan.outputs]


NAMES = {"[1]['t']", "[1]['w']"}
CLEAR = {
    "value_and_grad": (jax.value_and_grad(loss), (P, X), NAMES),
    "grad": (jax.grad(loss), (P, X), {"['t']", "['w']"}),
    "aux of other shapes": (with_aux(metrics), (P, X), NAMES),
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
    "a named tuple": (jax.value_and_grad(of_layer), (Layer(W, T), X), {"[1].w", "[1].t"}),
    "a dataclass": (jax.value_and_grad(of_layer), (Weights(W, T), X), {"[1].w", "[1].t"}),
    "a list": (jax.value_and_grad(listed), ([W, T], X), {"[1][0]", "[1][1]"}),
    "a list of one number": (
        jax.value_and_grad(lambda p, x: loss({"w": W, "t": p[0]}, x)), ([T], X), {"[1][0]"}
    ),
    "one array": (jax.value_and_grad(lambda w, x: loss({"w": w, "t": T}, x)), (W, X), {"[1]"}),
    "a part of what is passed": (of_state, ({"params": P, "step": T, "mu": P}, X), NAMES),
    "a parameter that is not used": (
        jax.value_and_grad(unused), (P | {"extra": jnp.ones(2)}, X), NAMES | {"[1]['extra']"}
    ),
    "beside updated parameters": (updated, (P, X), {"[0]['t']", "[0]['w']"}),
    "beside an average of parameters": (averaged, (P, P, X), {"[0]['t']", "[0]['w']"}),
    "beside new statistics": (
        jax.grad(normalised, has_aux=True), (P, M, X), {"[0]['t']", "[0]['w']"}
    ),
    "beside the loss and new statistics": (
        jax.value_and_grad(normalised, has_aux=True), (P, M, X), NAMES
    ),
    "beside a metric like a parameter": (with_aux(like_a_weight), (P, X), NAMES),
    "the examples in the same tree": (
        lambda d: jax.value_and_grad(loss)(d["p"], d["x"]), ({"p": P, "x": X},), NAMES
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "names"), CLEAR.values(), ids=CLEAR)
def test_names_say_which_outputs_are_gradients(function, arguments, names):
    module = hs.load(dump(function, *arguments))
    (batch,) = [p.name for p in module.arguments if p.shape == (B, 3)]
    assert set(taken(module, [batch])) == names


def test_norms_are_those_of_the_gradient_alone():
    module = hs.rewrite_module(dump(with_aux(metrics), P, X), batch=["x"], statistics=hs.norms())
    each = jax.vmap(lambda row: jax.grad(loss)(P, row[None]))(X)
    want = jnp.sqrt(sum(jnp.sum(g.reshape(B, -1) ** 2, 1) for g in jax.tree.leaves(each)))
    np.testing.assert_allclose(module.call(T, W, X)[-1], want, rtol=1e-5)


def tempered(p, t, x):
    return loss(p, x) * t


def linear(p, x):
    return jnp.mean(jnp.tanh(x @ p["w"])) + p["t"] * jnp.mean(x)


def merged(p, x):
    return {**jax.grad(loss)(p, x), "accuracy": jnp.mean(x)}


UNCLEAR = {
    "an average of parameters": (partial(averaged, kept=0.5), (P, P, X)),
    "new statistics": (jax.grad(partial(normalised, kept=0), has_aux=True), (P, M, X)),
    "new statistics beside the loss": (
        jax.value_and_grad(partial(normalised, kept=0), has_aux=True),
        (P, M, X),
    ),
    "the gradients again": (lambda p, x: (jax.grad(loss)(p, x), jax.grad(loss)(p, x)), (P, X)),
    "another number that is passed": (jax.value_and_grad(tempered), (P, SCALE, X)),
    "several arguments": (jax.grad(tempered, (0, 1)), (P, SCALE, X)),
    "a number alone": (jax.value_and_grad(lambda t, x: loss({"w": W, "t": t}, x)), (T, X)),
    "a metric in the gradient's tree": (merged, (P, X)),
    "a parameter that JAX left out": (jax.grad(linear), (P, X)),
    "the loss alone": (loss, (P, X)),
}


@pytest.mark.parametrize(("function", "arguments"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_stays_unclear_is_asked(function, arguments):
    source = dump(function, *arguments)
    with pytest.raises(
        ValueError, match=r"not clear.* name them in gradients=.*--gradient"
    ) as problem:
        taken(source, ["x"])
    assert all(port.name in str(problem.value) for port in hs.load(source).outputs)


def batch_normalised(p, stats, x, kept=0.0):
    h = x @ p["w"]
    new = {"m": kept * stats["m"] + (1 - kept) * h.mean(0)}
    return jnp.mean(jnp.tanh(h - h.mean(0)) ** 2) * p["t"], new


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("transform", [jax.grad, jax.value_and_grad])
@pytest.mark.parametrize("taking", [explain_module, hs.rewrite_module, verify])
def test_a_question_does_not_hide_a_refusal(taking, transform, kept):
    loss = partial(batch_normalised, kept=kept)
    source = dump(transform(loss, has_aux=True), P, M, X)
    with pytest.raises(hs.Refusal, match=r"meets each example's own values") as refusal:
        taking(source, batch=["x"], statistics=hs.norms())
    asked = kept < 0.9
    assert ("like p, was taken for the gradients" in refusal.value.help) == asked


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


def stepped_as_a_vector(p, x):
    value, gradient = jax.value_and_grad(loss)(p, x)
    vector, as_tree = ravel_pytree(p)
    return value, as_tree(vector - 0.1 * ravel_pytree(gradient)[0])


def stepped_in_a_loop(p, x):
    value, gradient = jax.value_and_grad(loss)(p, x)
    return value, jax.lax.fori_loop(
        0, 2, lambda _, p: jax.tree.map(lambda p, g: p - 0.1 * g, p, gradient), p
    )


UPDATED = {
    "a step": stepped,
    "within jit": jax.jit(stepped),
    "one of two": partly_stepped,
    "with decay": stepped_by(lambda p, g, rate: (1 - 0.01) * p - 0.1 * g),
    "with decay behind": stepped_by(lambda p, g, rate: p - 0.1 * g - 0.01 * p),
    "with decay by a rate": stepped_by(lambda p, g, rate: p * (1 - rate * 0.1) - rate * g),
    "negated": stepped_by(lambda p, g, rate: -(rate * g - p.astype(jnp.bfloat16) * 0.99)),
    "at some steps": stepped_by(lambda p, g, rate: jnp.where(jnp.sum(p) > 0, p - 0.1 * g, p)),
    "in one branch": stepped_by(
        lambda p, g, rate: jax.lax.cond(jnp.sum(p) > 0, lambda: p - 0.1 * g, lambda: p)
    ),
    "in some rows": stepped_by(lambda p, g, rate: p.at[:1].add(-0.1 * g[:1]) if p.ndim else p),
    "row by row": stepped_by(
        lambda p, g, rate: jnp.concatenate([p[:1] - g[:1], p[1:]]) if p.ndim else p
    ),
    "with a decay that divides": stepped_by(lambda p, g, rate: (p - rate * g) / (1.01 + rate)),
    "as a vector": stepped_as_a_vector,
    "in a loop": stepped_in_a_loop,
}


@pytest.mark.parametrize("step", UPDATED.values(), ids=UPDATED)
@pytest.mark.parametrize("debug_info", [True, False])
def test_updated_parameters_are_no_gradient(step, debug_info):
    source = dump(step, P, X, debug_info=debug_info)
    with pytest.raises(
        ValueError, match=r"\[1\] .*updated parameters, no gradient; name them in .*--gradient"
    ):
        taken(source, [2])
    plan = hs.rewrite_module(
        source, batch=[2], statistics=hs.norms(), gradients=["[1]"], on_mixing="contribution"
    ).plan
    assert {output.name for output in plan.outputs} == NAMES


def test_a_function_that_updates_returns_no_gradient():
    def new(p, x):
        return stepped(p, x)[1]

    with pytest.raises(
        ValueError, match=r"updated parameters, no gradient; return the gradients, or pick"
    ):
        hs.rewrite(new, batch_argnums=1, statistics=hs.norms())(P, X)
    picked = hs.rewrite(new, batch_argnums=1, statistics=hs.norms(), gradients=lambda out: out)
    assert picked(P, X)[1].shape == (B,)


def layered(p, x):
    return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"]) ** 2)


V = jnp.ones((5, 2))
UNNAMED = {
    "a dict": (jax.value_and_grad(loss), (P, X), ["[1]['t']", "[1]['w']"]),
    "a dict beside metrics": (with_aux(metrics), (P, X), ["[1]['t']", "[1]['w']"]),
    "a tuple": (
        jax.grad(lambda w, v, x: layered({"w": w, "v": v}, x), (0, 1)),
        (W, V, X),
        ["[0]", "[1]"],
    ),
    "another number that is passed": (jax.value_and_grad(tempered), (P, SCALE, X), None),
    "a number passed before": (
        jax.value_and_grad(lambda t, w, x: layered({"w": w, "v": V}, x) * t, 1),
        (T, W, X),
        None,
    ),
    "an average": (
        lambda w, ema, x: (jax.grad(loss)({"w": w, "t": T}, x)["w"], 0.9 * ema + w),
        (W, W, X),
        None,
    ),
    "new statistics": (jax.grad(normalised, has_aux=True), (P, M, X), None),
}


@pytest.mark.parametrize(("function", "arguments", "names"), UNNAMED.values(), ids=UNNAMED)
def test_without_names_of_arguments_outputs_are_like_all_of_them(function, arguments, names):
    source, batch = (
        dump(function, *arguments, debug_info=False),
        len(jax.tree.leaves(arguments)) - 1,
    )
    if names is not None:
        assert taken(source, [batch]) == names
        return
    with pytest.raises(ValueError, match="not clear"):
        taken(source, [batch])


@pytest.mark.parametrize("named", [[1, 1], ["[1]['w']", -1], ["[1]", "[1]['w']"]])
def test_no_gradient_counts_twice(named):
    with pytest.raises(ValueError, match="more than once"):
        hs.rewrite_module(
            dump(jax.value_and_grad(loss), P, X),
            batch=["x"],
            statistics=hs.norms(),
            gradients=named,
        )


def summed(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ (p["u"] + p["v"])) ** 2, -1))


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_parameters_with_one_gradient_count_each(strategy):
    """Their gradient is one value that the module returns twice."""
    p = {"u": W, "v": 0.5 * W}
    asked = {"norms": hs.norms(), "clipped": hs.clipped_mean(0.1), "squares": hs.second_moment()}
    module = hs.rewrite_module(
        dump(jax.grad(summed), p, X), batch=["x"], statistics=asked, strategy=strategy
    )
    found = dict(
        zip([port.name for port in module.outputs], module.call(p["u"], p["v"], X), strict=True)
    )
    each = jax.vmap(lambda row: jax.grad(summed)(p, row[None])["u"])(X)
    norms = jnp.sqrt(2 * jnp.sum(each**2, (1, 2)))
    clipped = jnp.mean(each * jnp.minimum(1, 0.1 / norms)[:, None, None], 0)
    np.testing.assert_allclose(found["norms"], norms, rtol=1e-5)
    for name in "['u']", "['v']":
        np.testing.assert_allclose(found[f"clipped/{name}"], clipped, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[f"squares/{name}"], jnp.mean(each**2, 0), rtol=1e-5)
