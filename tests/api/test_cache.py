"""The cache of rewritten modules: off unless JAX's is on, and never of what may have changed."""

import os
import subprocess
import sys
from functools import wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.rewriting import pipeline

W, X = jnp.sin(jnp.arange(6.0)).reshape(3, 2), jnp.cos(jnp.arange(12.0)).reshape(4, 3)


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@pytest.fixture
def rewritings(monkeypatch):
    """One entry for each time that something is rewritten."""
    made, rewrite = [], pipeline._rewrite
    monkeypatch.setattr(pipeline, "_rewrite", lambda *args: made.append(args) or rewrite(*args))
    return made


@pytest.fixture
def folder(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path / "hlo_surgery"
    jax.config.update("jax_compilation_cache_dir", before)


def found(statistics, fun=loss):
    """By a function of its own, as in a process of its own."""
    return hs.grad(fun, batch_argnums=1, statistics=statistics)(W, X)[1]


KNOWN = {
    "norms": hs.norms,
    "clipped": lambda: hs.clipped_mean(0.01),
    "several": lambda: {"a": hs.second_moment(), "b": hs.noise_scale(), "c": hs.mean_of(jnp.abs)},
    "drawn": lambda: hs.projected(3, seed=2),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", KNOWN)
def test_what_was_asked_before_is_not_rewritten(name, folder, rewritings):
    first, second = (jax.tree.leaves(found(KNOWN[name]())) for _ in range(2))
    assert len(rewritings) == 1
    assert len(list(folder.iterdir())) == 1
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "asked",
    [
        [hs.clipped_mean(0.01), hs.clipped_mean(0.02)],
        [hs.projected(3, seed=2), hs.projected(3, seed=3)],
        [hs.mean_of(lambda g: g**2), hs.mean_of(lambda g: g**2)],
        [hs.mean_of(jax.jit(lambda g: g**2)), hs.mean_of(jax.jit(lambda g: g**2))],
        [hs.mean_of(wraps(jnp.abs)(lambda g: g**2))] * 2,
    ],
    ids=["bounds", "seeds", "own functions", "own functions, jitted", "own, named as JAX's"],
)
def test_what_may_be_something_else_is_rewritten(asked, folder, rewritings):
    for statistic in asked:
        found(statistic)
    assert len(rewritings) == 2


def test_options_of_jax_count(folder, rewritings):
    found(hs.norms())
    with jax.default_matmul_precision("highest"):
        found(hs.norms())
    assert len(rewritings) == 2


def test_it_is_off_where_jax_has_none(rewritings):
    for _ in range(2):
        found(hs.norms())
    assert len(rewritings) == 2


PROGRAM = """
import jax.numpy as jnp
import hlo_surgery as hs
asked = {"norms": hs.norms(), "clipped": hs.clipped_mean(1.0)}
gradient = hs.grad(lambda w, x: jnp.mean((x @ w) ** 2), batch_argnums=1, statistics=asked)
gradient(jnp.ones((3, 2)), jnp.ones((4, 3)))
"""


@pytest.mark.slow
def test_another_process_finds_it(tmp_path):
    for seed in ("1", "2"):
        environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM]
        subprocess.run(command, check=True, env={**os.environ, **environment})
    assert len(list((tmp_path / "hlo_surgery").iterdir())) == 1
