"""What a person sees: plans, signatures, and refusals in a notebook."""

import inspect

import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.strategies.choice import WAYS

X = jnp.arange(4.0)


def mean(w, x):
    return jnp.mean(w * x)


def largest(w, x):
    return jnp.max(w * x)


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


INTERNAL = "hlo_surgery.", "PlanningOptions", "Derived", "MeanOf", "_jax", "typing", "'None'"


def test_signatures_have_no_internal_types():
    for function in filter(inspect.isfunction, PUBLIC):
        text = f"{function.__name__}{inspect.signature(function)}"
        assert not any(word in text for word in INTERNAL), text
        assert function.__doc__, text


def test_planning_and_words_are_told_by_signatures():
    taken = inspect.signature(hs.grad).parameters
    ways = ", ".join(map(repr, WAYS))
    assert str(taken["strategy"]) == f"strategy: Literal[{ways}] = 'auto'"
    assert str(taken["loss_reduction"]) == "loss_reduction: Literal['mean', 'sum'] = 'mean'"
    assert taken["memory_budget"].default is None
