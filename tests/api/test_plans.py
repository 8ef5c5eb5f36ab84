"""What plans say of time: a prediction for each statistic, and what calls took."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.requests.options import ROOFLINES
from hlo_surgery.rewriting import autotune
from hlo_surgery.rewriting.predicted import program_seconds

X = jnp.sin(jnp.arange(96.0)).reshape(8, 4, 3)
P = {"in": jnp.cos(jnp.arange(15.0)).reshape(3, 5), "out": jnp.ones((5, 2))}
ASKED = {"norms": hs.norms(), "clipped": hs.clipped_mean(0.1)}
CPU = ROOFLINES["cpu"]


def loss(p, x):
    return jnp.mean(jnp.tanh(x @ p["in"]) @ p["out"])


def measuring():
    return hs.grad(loss, statistics=ASKED, autotune=True)


@pytest.fixture
def timings(monkeypatch):
    """What is measured: a loop takes least. One entry for each time that anything is."""
    taken = []

    def seconds(candidates):
        taken.append(dict(candidates))
        return {"loop": 1e-3, "auto": 2e-3, "lift": 3e-3}

    monkeypatch.setattr(autotune, "_seconds", seconds)
    return taken


def test_the_fastest_is_taken_and_told(timings):
    f = measuring()
    found, plan = f(P, X)[1], hs.explain(f, P, X)
    assert set(f.plan(P, X)["norms"].values()) == {"loop"}
    assert "measured: loop 1 ms, auto 2 ms, lift 3 ms; loop is taken" in str(plan)
    expected = hs.grad(loss, statistics=ASKED)(P, X)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    jax.jit(f)(P, X)
    f(P, X)
    assert [set(candidates) for candidates in timings] == [{"auto", "lift", "loop"}]


def test_nothing_is_measured_of_what_is_traced(timings):
    f = measuring()
    jax.jit(f)(P, X)
    assert not timings
    f(P, X)
    assert len(timings) == 1


def test_calls_are_timed():
    f = measuring()
    f(P, X)
    measured = hs.explain(f, P, X).measured
    assert set(measured) == {"auto", "lift", "loop"}
    assert list(measured.values()) == sorted(measured.values())
    assert min(measured.values()) > 0


def test_what_was_measured_is_kept(timings, tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        for _ in range(2):
            f = measuring()
            f(P, X)
            assert set(f.plan(P, X)["norms"].values()) == {"loop"}
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert len(timings) == 1


def test_what_would_not_fit_is_not_measured(timings, monkeypatch):
    monkeypatch.setattr("hlo_surgery.rewriting.gradient_function.LARGEST", 1)
    measuring()(P, X)
    assert set(timings[0]) == {"auto", "loop"}


@pytest.mark.parametrize(
    ("how", "said"), [({"strategy": "lift"}, "chooses the strategy"), ({"autotune": 1}, "True or")]
)
def test_what_it_does_not_take(how, said):
    with pytest.raises((TypeError, ValueError), match=said):
        hs.grad(loss, statistics=hs.norms(), **{"autotune": True, **how})


def test_a_module_is_not_measured():
    text = jax.jit(jax.grad(loss)).lower(P, X).as_text()
    with pytest.raises(ValueError, match="or hs"):
        hs.modules.rewrite_module(text, batch=["x"], statistics=hs.norms(), autotune=True)


def seconds_of(function, *args):
    code = mlir.parse(jax.jit(function).lower(*args).as_text())
    normalize(code)
    return program_seconds(mlir.body(mlir.main_function(code)), CPU)


def test_a_program_takes_its_contractions_and_what_else_is_written():
    a, b = jnp.ones((512, 512)), jnp.ones((512, 512))
    dot = 2 * 512**3 / CPU.contraction_rate(512, batched=False, narrow=False)
    written = 4 * 512**2 / CPU.bandwidth
    assert np.isclose(seconds_of(lambda a, b: jnp.tanh(a @ b), a, b), dot + written)
    looped = seconds_of(lambda a, b: lax.fori_loop(0, 5, lambda _, x: jnp.tanh(x @ b), a), a, b)
    assert np.isclose(looped, 5 * (dot + written), rtol=1e-3)


def test_a_statistic_takes_what_its_strategies_do_beside_the_gradient():
    plan = hs.explain(hs.grad(loss, statistics=ASKED, strategy="loop", target="cpu"), P, X)
    beside = sum(o.predicted["loop"].seconds for o in plan.outputs)
    again = sum(o.predicted["reweight"].seconds for o in plan.outputs)
    whole = plan.seconds
    assert f"norms: about {1 + beside / whole:.1f} x the gradient; 2 loop" in str(plan)
    assert f"clipped: about {1 + (beside + again) / whole:.1f} x the gradient; 2 loop +" in str(
        plan
    )
    # Of other devices no prediction was held against a program.
    text = str(hs.explain(hs.grad(loss, statistics=ASKED, target="tpu:v5e"), P, X))
    assert "x the gradient" not in text
