"""What a person sees: reprs, signatures, tracebacks, and refusals in a notebook."""

import inspect
import traceback
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.strategies.choice import WAYS

X = jnp.arange(4.0)


def mean(w, x):
    return jnp.mean(w * x)


def largest(w, x):
    return jnp.max(w * x)


def mistaken(w, x):
    return mean(w, x @ jnp.ones(7))


def step_of(loss):
    optax = pytest.importorskip("optax")
    return hs.train_step(loss, optax.sgd(0.1), statistics=hs.norms())


def test_a_plan_is_shown_by_its_text():
    plan = hs.explain(hs.grad(mean, statistics=hs.norms()), 1.0, X)
    assert repr(plan).startswith("4 examples, loss reduced by mean")


def test_a_notebook_shows_refusals():
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(largest, statistics=hs.norms())(1.0, X)
    assert refused.value._repr_html_().startswith("<pre>")
    assert "test_shown.py" in refused.value._repr_html_()


ROOMS = (hs.modules, hs.targets, hs.curvature, hs.optimizers, hs.attribution)
PUBLIC = [
    *(getattr(hs, name) for name in hs.__all__),
    *(getattr(room, name) for room in ROOMS for name in room.__all__),
]


@pytest.mark.parametrize(
    "function", list(filter(inspect.isfunction, PUBLIC)), ids=lambda f: f.__name__
)
def test_signatures_have_no_internal_types(function):
    text = str(inspect.signature(function))
    for word in (
        "hlo_surgery.",
        "PlanningOptions",
        "Derived",
        "MeanOf",
        "_jax",
        "typing",
        "'None'",
    ):
        assert word not in text
    assert function.__doc__


def test_planning_and_words_are_told_by_signatures():
    taken = inspect.signature(hs.grad).parameters
    ways = ", ".join(map(repr, WAYS))
    assert str(taken["strategy"]) == f"strategy: Literal[{ways}] = 'auto'"
    assert str(taken["loss_reduction"]) == "loss_reduction: Literal['mean', 'sum'] = 'mean'"
    assert taken["memory_budget"].default is None


def frames(problem):
    """The functions of a traceback, from here on."""
    found = traceback.extract_tb(problem.__traceback__)
    return [frame.name for frame in found if "/jax/" not in frame.filename]


@contextmanager
def filtering(how):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", how)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


WRONG = {
    "refused": lambda: hs.grad(largest, statistics=hs.norms())(1.0, X),
    "a wrong keyword": lambda: hs.grad(mean, statistics=hs.norms(), strategy="none"),
    "a wrong number": lambda: hs.norms(ord=-1),
    "refused, explained": lambda: hs.explain(hs.grad(largest, statistics=hs.norms()), 1.0, X),
    "no file": lambda: hs.modules.load("none"),
    "no target": lambda: hs.targets.find_target("none"),
    "mapped": lambda: jax.vmap(hs.grad(mean, statistics=hs.norms()), (0, None))(X, X),
    "in a step": lambda: step_of(largest)(1.0, (), X),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_frame_of_ours_is_in_a_traceback(name):
    with pytest.raises(Exception, match=r"\w") as caught:
        WRONG[name]()
    assert set(frames(caught.value)) == {"test_no_frame_of_ours_is_in_a_traceback", "<lambda>"}
    assert caught.value.__cause__ is None


def test_a_mistake_in_the_loss_is_shown_where_it_is():
    with pytest.raises(TypeError) as caught:
        hs.grad(mistaken, statistics=hs.norms())(1.0, jnp.ones((4, 3)))
    assert frames(caught.value)[1:] == ["mistaken"]


def test_all_frames_are_there_where_jax_is_asked_for_them():
    with filtering("off"), pytest.raises(hs.Refusal) as caught:
        WRONG["refused"]()
    assert "_rewrite" in frames(caught.value)


def test_what_is_a_fault_of_ours_keeps_its_frames(monkeypatch):
    monkeypatch.setattr("hlo_surgery.rewriting.pipeline.finished", None)
    with pytest.raises(TypeError) as caught:
        hs.grad(mean, statistics=hs.norms())(1.0, X)
    assert frames(caught.value)[-1] == "_rewrite"
