"""Statistics and custom calls on the command line: by name with arguments; answers to bad ones."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.cli.asking import NEED_A_FUNCTION, listed, statistics
from tests.cli.test_cli import MLP, MLP_BATCH, MLP_INPUTS, SQUARES, answered, rejected
from tests.dataflow.test_declared_calls import SCHUR, SOLVE, by_features

# Each statistic as it may be written, and as Python makes it.
WRITTEN = {
    "clipped_mean(max_norm=0.5)": hs.clipped_mean(0.5),
    "clipped_mean(0.5, per='parameter', nan_safe=True)": hs.clipped_mean(
        0.5, "parameter", nan_safe=True
    ),
    "clipped_second_moment(0.5, per='parameter')": hs.clipped_second_moment(0.5, "parameter"),
    "clipped_sum(0.5)": hs.clipped_sum(0.5),
    "crossed": hs.crossed(),
    "gram": hs.gram(),
    "histogram([-1, 0.01, 1])": hs.histogram([-1, 0.01, 1]),
    "inner_products()": hs.inner_products(),
    "kronecker_factors('reduce')": hs.kronecker_factors("reduce"),
    "mean_abs": hs.mean_abs(),
    "mean_of_clipped_entries(0.1)": hs.mean_of_clipped_entries(0.1),
    "mean_power(3)": hs.mean_power(3),
    "mean_sign": hs.mean_sign(),
    "noise_scale": hs.noise_scale(),
    "norms": hs.norms(),
    'norms("parameter")': hs.norms("parameter"),
    'norms({"hidden": [0, 1], "output": [2, "[\'output\'][\'kernel\']"]}, ord=1)': hs.norms(
        {"hidden": [0, 1], "output": [2, 3]}, ord=1
    ),
    "norms(ord=inf)": hs.norms(ord=float("inf")),
    "norms(ord=float('inf'))": hs.norms(ord=float("inf")),
    "per_example": hs.per_example(),
    "per_token_second_moment": hs.per_token_second_moment(),
    "polynomial([1, 2, 3])": hs.polynomial([1, 2, 3]),
    "projected(2, seed=1, per='global')": hs.projected(2, seed=1, per="global"),
    "second_moment": hs.second_moment(),
    "snr": hs.snr(),
    "token_norms": hs.token_norms(),
    "top_directions(2)": hs.top_directions(2),
    "variance(unbiased=False)": hs.variance(unbiased=False),
}


def flags(texts):
    return [part for text in texts for part in ("--statistic", text)]


@pytest.mark.slow
def test_every_statistic_returns_what_that_of_python_does(tmp_path):
    out, stored = tmp_path / "out.mlir", tmp_path / "out.npz"
    done = answered("rewrite", MLP, *MLP_BATCH, *flags(WRITTEN), "-o", out)
    answered("run", out, "--inputs", MLP_INPUTS, "-o", stored)
    made = {text.removesuffix("()"): statistic for text, statistic in WRITTEN.items()}
    wanted = hs.modules.rewrite_module(Path(MLP), batch=["x", "labels"], statistics=made)
    assert f"4 outputs of the original, {len(wanted.outputs) - 4} statistics" in done.stdout
    arrays = np.load(stored)
    assert arrays.files == [port.name for port in wanted.outputs]
    for name, array in zip(arrays.files, wanted.call(*np.load(MLP_INPUTS).values()), strict=True):
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


def test_every_statistic_is_tried_or_needs_python():
    tried = {text.split("(")[0] for text in WRITTEN}
    assert tried | {*NEED_A_FUNCTION, "per_example_losses"} == set(statistics())


def test_the_list_has_each_statistic_with_one_line():
    rows = json.loads(answered("statistics", "--json").stdout)["statistics"]
    assert rows == listed()
    assert [row["name"] for row in rows if row["python_only"]] == sorted(NEED_A_FUNCTION)
    assert all(row["summary"].endswith(".") for row in rows)
    shown = answered("statistics").stdout.splitlines()
    for row in rows:
        (line,) = [line for line in shown if f"│ {row['usage']} " in line]
        assert row["summary"] in line
        assert ("Python only" in line) == row["python_only"]


BAD = {
    "median": "there is no statistic 'median'; there are clipped_mean, clipped_second_moment,",
    "norm": "there is no statistic 'norm'; there are clipped_mean,",
    "": "is no name and no call",
    "os.remove('x')": "is no name and no call",
    "norms(": "is no name and no call",
    "(" * 3000: "is no name and no call",
    "mean_of(lambda g: g)": "use it from Python, as hlo_surgery.mean_of",
    "mean_power(exit())": "are no plain values; write mean_power(k) with",
    "mean_of_clipped_entries(*[1])": "are no plain values",
    "clipped_mean": "missing 1 required positional argument: 'max_norm'; write "
    "clipped_mean(max_norm, per='global',",
    "clipped_mean(1e400)": "clipped_mean takes a positive max_norm that is finite, not inf",
    f"clipped_mean(1{'0' * 400})": "clipped_mean takes a positive max_norm that is finite, not 10",
    "clipped_mean(1, nan_safe='no')": "takes True or False for nan_safe, not 'no'",
    "norms(ord=0)": "norms takes ord > 0",
    "norms('weights')": "per is 'weights'; it is 'global', 'parameter', or a dict",
    "norms({'a': [0]})": "the groups of norms(per=...) must hold every gradient once",
    "polynomial([1, 'a'])": "polynomial takes one real, finite number for a coefficient, not 'a'",
    "histogram([1, 0])": "increasing edges",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_statistics_say_what_to_write(text):
    assert BAD[text] in rejected("plan", MLP, *MLP_BATCH, "--statistic", text)


X = jax.ShapeDtypeStruct((4, 3, 3), jnp.float32)
ASKED = ("--batch", "x", *SQUARES)
DECLARED = ("--custom-call", f"{SCHUR}=0:0,-,-,-,0,0")


def mixing(w, x):
    matrix = 2 * jnp.eye(4) + jnp.tril(jnp.ones((4, 4)))
    h = jax.lax.linalg.triangular_solve(matrix, x[:, 0] @ w, left_side=True, lower=True)
    return jnp.mean((jnp.tanh(h) ** 2).sum(-1))


@pytest.fixture
def dumped(tmp_path):
    def written(loss):
        w = jax.ShapeDtypeStruct((3, 2), jnp.float32)
        file = tmp_path / "module.mlir"
        file.write_text(jax.jit(jax.grad(loss)).lower(w, X).as_text(debug_info=True))
        return str(file)

    return written


def test_commands_that_rewrite_take_what_is_declared(dumped, tmp_path):
    file, out = dumped(by_features), str(tmp_path / "out.mlir")
    shown = answered("plan", file, *ASKED, *DECLARED).output
    assert f"taken on trust: {SCHUR} at " in shown
    assert "one by one along (0) -> (0, -, -, -, 0, 0)" in shown
    answered("rewrite", file, *ASKED, *DECLARED, "-o", out)
    assert "equivalent" in answered("verify", file, *ASKED, *DECLARED).output


def test_a_refusal_names_the_option(dumped):
    assert "--custom-call with the call's name" in rejected(
        "plan", dumped(by_features), *ASKED, code=1
    )


def test_verify_says_of_a_wrong_word_that_it_was_trusted(dumped):
    declared = ("--custom-call", f"{SOLVE}=-,0:0")
    answer = answered("plan", dumped(mixing), *ASKED, *declared).output
    assert "taken on trust" in answer
    file = dumped(mixing)
    assert rejected("verify", file, *ASKED, *declared, code=1) == ""


MISSPELLED = {
    "no axes": (f"{SCHUR}", "write NAME=AXES:AXES"),
    "no results": (f"{SCHUR}=0", "write NAME=AXES:AXES"),
    "no name": ("=0:0", "write NAME=AXES:AXES"),
    "no number": (f"{SCHUR}=a:0", "write NAME=AXES:AXES"),
    "a comma too many": (f"{SCHUR}=0,:0", "write NAME=AXES:AXES"),
    "too few results": (f"{SCHUR}=0:0", "--custom-call has 1 axes for the 6 results of"),
    "another name": ("kernel=0:0", "--custom-call names 'kernel', which the module does not call"),
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_what_is_misspelled_is_told(dumped, name):
    given, said = MISSPELLED[name]
    assert said in rejected("plan", dumped(by_features), *ASKED, "--custom-call", given)
