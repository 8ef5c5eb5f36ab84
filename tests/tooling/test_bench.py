"""The bench: at small sizes its methods agree, and it writes what it is asked for."""

import csv
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tools.bench import twelve
from tools.bench.comparison import methods
from tools.models.families import FAMILIES, mlp
from tools.models.workloads import WORKLOADS

ROOT = Path(__file__).parent.parent.parent
SMALL = {
    "mlp": {"width": 8, "depth": 2},
    "lm": {"width": 8, "depth": 1, "length": 6, "vocabulary": 16},
    "conv": {},
    "unet": {"width": 8, "depth": 1, "side": 8},
    "resnet": {"width": 8, "depth": 1, "side": 8},
    "conformer": {"width": 8, "length": 6},
    "embedding": {"width": 8, "vocabulary": 16, "length": 5},
    "lstm": {"width": 8, "length": 4},
}


def applying(method, problem):
    try:
        return [candidate.function for candidate in method(problem, None)]
    except methods.DoesNotApply:
        return []


def agree(got, want):
    """Sums of at most a few thousand terms, in another order, leaf by leaf against the leaf's
    largest element.
    """
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * np.abs(w).max())


def agree_with_vmap(family, others):
    """How many functions have the gradient of `jax.grad` and the second moment of `vmap`."""
    problem = FAMILIES[family][0](batch=4, **SMALL[family])
    args = problem.make()
    gradient = jax.jit(jax.grad(problem.loss))(*args)
    (by_vmap,) = applying(methods.by_vmap, problem)
    squares = jax.jit(by_vmap)(*args)[1]
    found = [function for method in others for function in applying(method, problem)]
    for function in found:
        agree(jax.jit(function)(*args), (gradient, squares))
    return len(found)


@pytest.mark.parametrize("family", SMALL)
def test_methods_agree(family):
    assert set(FAMILIES) == set(SMALL)
    others = (methods.surgery, methods.by_microbatches, methods.by_jaxpr_surgery)
    assert agree_with_vmap(family, others) == (3 if family == "mlp" else 2)


@pytest.mark.parametrize("family", ["mlp", "conv"])
def test_clipped_means_agree(family):
    pytest.importorskip("jax_privacy")
    problem = FAMILIES[family][0](batch=4, **SMALL[family])
    (surgery,) = applying(methods.clipped_by_surgery, problem)
    args, others = problem.make(), applying(methods.clipped_by_jax_privacy, problem)
    assert len(others) == 2
    for other in others:
        agree(jax.jit(other)(*args), jax.jit(surgery)(*args))


@pytest.mark.parametrize("statistic", twelve.STATISTICS)
def test_a_user_has_all_ways_of_twelve(statistic, monkeypatch, tmp_path):
    """`measure` compares what they return."""
    pytest.importorskip("jax_privacy")
    monkeypatch.setitem(twelve.TWELVE, "tiny", lambda: mlp.classifier(16, (4, 6, 3)))
    rows = twelve.measure("tiny", statistic, rounds=1)
    expected = {"plain", "plan", "in microbatches", *twelve.RIVALS, "our lift", "our loop"}
    expected |= {"our square" if statistic == "squares" else "our ghost", "micro_grad, whole"}
    if statistic != "clipped":
        expected.remove("jax-privacy")
    assert {row.way.split(":")[0] for row in rows} == expected
    assert all(row.cpu > 0 and row.first_call > 0 for row in rows)
    twelve.write([rows], tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(rows)


def test_only_the_ways_asked_for_are_run(monkeypatch):
    monkeypatch.setitem(twelve.TWELVE, "tiny", lambda: mlp.classifier(16, (4, 6, 3)))
    rows = twelve.measure("tiny", "norms", rounds=1, asked=["plan"])
    assert {row.way for row in rows} == {"plain", "vmap", "plan"}


def ran(*words):
    command = [sys.executable, "-m", "tools.bench.families", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_row_has_a_time_or_a_reason(tmp_path):
    """The gradients of 8 examples of a table of 4096 x 8 take more than 1 MB, those of 4 less."""
    pytest.importorskip("matplotlib")
    sizes = ("--batches", 4, 8, "--widths", 8, "--depths", 2, "--rounds", 1, "--limit-gb", 1e-3)
    files = ("--csv", tmp_path / "bench.csv", "--png", tmp_path / "bench.png")
    ran(
        "--families",
        "mlp",
        "embedding",
        "--methods",
        "plain",
        "jit(vmap)",
        "jaxpr surgery",
        *sizes,
        *files,
    )
    rows = list(csv.DictReader((tmp_path / "bench.csv").open()))
    cells = [("mlp", "4"), ("mlp", "8"), ("embedding", "4"), ("embedding", "8")]
    assert [(row["family"], row["batch"]) for row in rows] == [
        cell for cell in cells for _ in range(3)
    ]
    assert all(bool(row["seconds"]) != bool(row["note"]) for row in rows)
    reasons = {
        (row["family"], row["batch"], row["method"]): row["note"] for row in rows if row["note"]
    }
    assert set(reasons) == {
        ("embedding", "8", "jit(vmap)"),
        ("embedding", "4", "jaxpr surgery"),
        ("embedding", "8", "jaxpr surgery"),
    }
    assert reasons["embedding", "8", "jit(vmap)"].startswith("skipped: 1.")
    assert (tmp_path / "bench.png").stat().st_size > 10_000


# Every kind of layer once: what compiles and runs fast, at the small sizes otherwise.
SPEECH = {
    "batch": 4,
    "width": 16,
    "depth": 1,
    "length": 16,
    "mels": 8,
    "characters": 3,
    "classes": 8,
}
SMALLER = {
    "unet": {"depth": 1, "side": 16},
    "lm": {"batch": 4, "width": 32, "depth": 1, "length": 16, "vocabulary": 64},
    "resnet": {"batch": 4, "width": 8, "depths": (1, 1), "side": 16, "classes": 10},
    "vit": {"batch": 4, "width": 32, "depth": 1, "side": 32, "classes": 10},
    "wmt": {"batch": 4, "width": 32, "depth": 1, "length": 12, "vocabulary": 64},
    "conformer": SPEECH,
    "deepspeech": SPEECH,
}


def arguments(problem):
    """Made in one program, by random numbers whose programs compile fast."""
    with jax.default_prng_impl("rbg"):
        return jax.jit(problem.make)()


def agree_of_workloads(got, want):
    """Sums of at most a few thousand float32 terms, in another order, leaf by leaf against the
    leaf's largest element.

    Rounding is 6e-8 a step, and grows with the root of the terms and over a few layers; an example
    that is left out, or counted twice, moves a mean over four of them by a quarter of its share.
    """
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * np.abs(w).max())


@pytest.mark.parametrize("name", SMALLER)
def test_second_moments_are_those_of_vmap(name):
    assert set(WORKLOADS) == set(SMALLER)
    problem = WORKLOADS[name].of("small", **SMALLER[name])
    (surgery,), (by_vmap,) = methods.surgery(problem, None), methods.by_vmap(problem, None)
    args = arguments(problem)
    agree_of_workloads(jax.jit(surgery.function)(*args), jax.jit(by_vmap.function)(*args))
