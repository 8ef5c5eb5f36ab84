"""The workloads of AlgoPerf: no refusals; second moments by surgery as of single examples."""

import argparse
import csv

import jax
import numpy as np
import pytest

from tools.bench.comparison import methods
from tools.bench.workloads import append, measure
from tools.models.workloads import WORKLOADS

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
# Of the published models; the others have no biases, or other norms, somewhere.
PARAMETERS = {"unet": 7_756_097, "resnet": 25_557_032}


def arguments(problem):
    """Made in one program, by random numbers whose programs compile fast."""
    with jax.default_prng_impl("rbg"):
        return jax.jit(problem.make)()


def agree(got, want):
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
    agree(jax.jit(surgery.function)(*args), jax.jit(by_vmap.function)(*args))


@pytest.mark.parametrize("name", PARAMETERS)
def test_full_sizes_are_those_of_the_published_models(name):
    params, *_ = WORKLOADS[name].of("full").structs
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS[name]


def test_a_measured_row_goes_to_the_file(tmp_path):
    problem = WORKLOADS["vit"].of("small", **SMALLER["vit"])
    (row,) = measure("vit", problem, argparse.Namespace(size="small", methods=["Adam"], rounds=1))
    for _ in range(2):
        append(row, tmp_path / "rows.csv")
    written = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [(row["workload"], row["batch"], row["method"]) for row in written] == [
        ("vit", "4", "Adam")
    ] * 2
    assert all(float(row["seconds"]) > 0 and int(row["temporaries"]) > 0 for row in written)
