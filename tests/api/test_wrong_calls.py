"""Wrong calls: what is seen to be wrong where a function is made, and what only its call shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

W, X = jnp.ones(3), jnp.ones((4, 3))


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def assert_same(found, wanted):
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def of_grad(**options):
    return hs.grad(loss, **{"statistics": hs.norms(), **options})


def of_rewrite(**options):
    return hs.rewrite(jax.grad(loss), **{"statistics": hs.norms(), "batch_argnums": 1, **options})


def of_train_step(**options):
    optax = pytest.importorskip("optax")
    return hs.train_step(loss, optax.sgd(0.1), **options)


WHEN_MADE = {
    "a keyword": ({"budget": 3}, TypeError, "no keyword 'budget'; .*loss_reduction.*memory_budget"),
    "a strategy": ({"strategy": "fast"}, ValueError, "strategy is 'fast'"),
    "a reduction": ({"loss_reduction": "avg"}, ValueError, "one of 'mean', 'sum'"),
    "a mode": ({"on_mixing": "allow"}, ValueError, "one of 'refuse', 'contribution'"),
    "a position": ({"batch_argnums": 1.0}, TypeError, "batch_argnums holds 1.0; pass the position"),
    "a name that is no text": (
        {"statistics": {"a": hs.norms(), 1: hs.norms()}},
        TypeError,
        "statistics is .* a dict of some by names",
    ),
    "a statistic that is not called": (
        {"statistics": hs.norms},
        TypeError,
        r"such as hlo_surgery\.norms\(",
    ),
}


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"x": "a"}, "the example axis of x is 'a'; it is an integer"),
        ({"x": None}, "the example axis of x is None"),
        ([1.5], "the position of the argument is 1.5; it is an integer"),
    ],
)
def test_axes_and_positions_in_a_module_are_integers(batch, said):
    text = jax.jit(jax.grad(loss)).lower(W, X).as_text(debug_info=True)
    with pytest.raises(TypeError, match=said):
        hs.modules.rewrite_module(text, batch=batch, statistics=hs.norms())


@pytest.mark.parametrize("make", [of_grad, of_rewrite, of_train_step])
@pytest.mark.parametrize(("options", "kind", "said"), WHEN_MADE.values(), ids=WHEN_MADE)
def test_wrong_options_are_seen_before_there_are_arguments(make, options, kind, said):
    with pytest.raises(kind, match=said):
        make(**options)


def test_a_batch_by_keyword_has_a_name():
    assert_same(of_grad()(W, x=X), of_grad()(W, X))
    named = hs.grad(lambda w, *, x: loss(w, x), batch_argnames="x", statistics=hs.norms())
    assert_same(named(W, x=X), of_grad()(W, X))
    assert_same(hs.grad(loss, batch_argnames=["x"], statistics=hs.norms())(W, X), named(W, x=X))
    keywords = hs.grad(lambda w, **kw: loss(w, kw["x"]), statistics=hs.norms())
    with pytest.raises(ValueError, match=r"1 positional ones were given, and by name .* x"):
        keywords(W, x=X)
    with pytest.raises(ValueError, match=r"batch_argnames names argument 'y'; .* by name .* x"):
        hs.grad(lambda w, *, x: loss(w, x), batch_argnames="y", statistics=hs.norms())(W, x=X)
    with pytest.raises(ValueError, match="one twice"):
        hs.grad(loss, batch_argnums=1, batch_argnames="x", statistics=hs.norms())(W, X)
    with pytest.raises(
        TypeError, match=r"rewrite needs batch_argnums=\.\.\., .* or batch_argnames"
    ):
        hs.rewrite(jax.grad(loss), statistics=hs.norms())


def gradient_module():
    return jax.jit(jax.grad(loss)).lower(W, X).as_text(debug_info=True)


def rewriting(**given):
    return hs.rewrite_module(gradient_module(), statistics=hs.norms(), **given)


WAYS_OF_SEGMENTS = {
    "it is a function of the arguments": lambda: hs.train_step(loss, None, segments={"x": "ids"}),
    "leave in_axes out": lambda: hs.grad(loss, statistics=hs.norms(), segments=len, in_axes=1),
    "names no ids": lambda: hs.grad(loss, statistics=hs.norms(), segments=lambda w, x: None)(W, X),
    "of a module it is a dict": lambda: rewriting(batch=["x"], segments="ids"),
    "there is one integer, int32 or": lambda: rewriting(batch=[], segments={"x": "w"}),
}


@pytest.mark.parametrize("words", WAYS_OF_SEGMENTS)
def test_segments_that_are_none_are_an_error(words):
    with pytest.raises((TypeError, ValueError), match=words):
        WAYS_OF_SEGMENTS[words]()
