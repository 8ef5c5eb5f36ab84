"""The bench: at small sizes its methods agree, and it writes what it is asked for."""

import csv
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from hlo_surgery.targets.target import find_target
from tools.bench import twelve
from tools.bench.comparison import methods, strategies
from tools.bench.comparison.costs import known_cost
from tools.bench.comparison.runs import Row
from tools.models.families import FAMILIES, mlp

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


@pytest.mark.parametrize(("family", "apply"), [("mlp", 3), ("conv", 2)])
def test_forced_strategies_agree(family, apply):
    forced = [strategies.forced(name) for name in strategies.STRATEGIES]
    assert agree_with_vmap(family, forced) == apply


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
    expected |= {"our square" if statistic == "squares" else "our ghost"}
    if statistic != "clipped":
        expected.remove("jax-privacy")
    assert {row.way.split(":")[0] for row in rows} == expected
    assert all(row.cpu > 0 and row.first_call > 0 for row in rows)
    twelve.write([rows], tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(rows)


def test_jaxpr_surgery_applies_to_dense_layers_alone():
    applies = {
        name
        for name in FAMILIES
        if applying(methods.by_jaxpr_surgery, FAMILIES[name][0](**SMALL[name]))
    }
    assert applies == {"mlp"}


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


def test_unknown_trip_counts_stop_a_bench():
    looped = jax.jit(lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x))
    with pytest.raises(ValueError, match="the trip counts of 1 loops are unknown"):
        known_cost(looped.lower(np.ones(3, np.float32)).compile(), find_target("cpu"))


def test_orders_of_strategies_are_compared():
    problem = FAMILIES["mlp"][0]()
    plain = Row(problem, "plain", 1.0)
    near = [Row(problem, "square", 1.0, predicted=2.0), Row(problem, "lift", 1.05, predicted=1.0)]
    far = Row(problem, "loop", 3.0, predicted=1.5)
    lines = list(strategies.agreement([[plain, *near], [plain, *near, far]]))
    assert lines[1:3] == ["  1 of 2 (50%) of cells", "  3 of 4 (75%) of pairs"]
    assert lines[3:] == [
        f"  not in {problem.title}: square 1000 ms (predicted +2 s), loop 3000 ms (predicted +1.5 "
        "s)"
    ]


def test_squares_of_examples_are_the_less_noisy_fisher_diagonal():
    pytest.importorskip("sklearn")
    from tools.bench.curvature.fisher_variance import initial, variances

    x = jax.random.uniform(jax.random.key(0), (16, 64))
    own, of_mean, means = variances(initial(0), x, jax.random.split(jax.random.key(1), 100))
    assert of_mean > 2 * own
    # Both are unbiased: off by their noise alone.
    assert abs(means - 1) < 0.2
