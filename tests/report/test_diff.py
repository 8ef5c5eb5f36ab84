"""hlo-surgery diff: the added ops alone, in words and in MLIR, with the user's source lines."""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from hlo_surgery.cli.commands import main
from hlo_surgery.module import load

X, W = jnp.sin(jnp.arange(24.0)).reshape(8, 3), jnp.cos(jnp.arange(9.0)).reshape(3, 3)


def gradient(w, x):
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text(jax.jit(gradient).lower(W, X).as_text(debug_info=True))
    return path


def diff(*given):
    run = CliRunner().invoke(main, ["diff", *map(str, given)])
    assert run.exit_code == 0, run.stderr
    return run.stdout


def test_words_and_lines(module):
    shown = diff(module, "--batch", "x", "--words")
    assert "hlo_surgery/second_moment/result/square" in shown
    assert re.search(r"for \S*test_diff\.py:\d+\n", shown)
    assert "%" not in shown


def test_the_mlir_is_that_of_the_added_ops(module, tmp_path):
    shown = diff(module, "--batch", "x")
    ops = re.findall(r"^    %.*", shown, re.MULTILINE)
    assert len(ops) == int(shown.split(" op")[0])
    out = tmp_path / "rewritten.mlir"
    asked = ["--batch", "x", "--statistic", "second_moment", "-o", str(out)]
    CliRunner().invoke(main, ["rewrite", str(module), *asked])
    written = str(load(out).code)
    assert all(op.strip() in written for op in ops)
    # The program's own.
    assert "stablehlo.tanh" in written
    assert "stablehlo.tanh" not in shown


@pytest.mark.parametrize("suffix", ["mlir", "mlirbc", "jax_export"])
def test_a_rewritten_file_tells_by_itself(module, tmp_path, suffix):
    out = tmp_path / f"rewritten.{suffix}"
    asked = ["--batch", "x", "--statistic", "second_moment"]
    assert CliRunner().invoke(main, ["rewrite", str(module), *asked, "-o", str(out)]).exit_code == 0
    assert diff(out, "--words") == diff(module, *asked, "--words")


def test_json(module):
    (found,) = json.loads(diff(module, "--batch", "x", "--json"))["additions"]
    assert (found["statistic"], found["output"]) == ("second_moment", "result")
    assert {"op", "where", "mlir"} == set(found["ops"][0])


def test_a_module_that_was_not_rewritten(module):
    run = CliRunner().invoke(main, ["diff", str(module)])
    assert run.exit_code == 2
    assert "--batch" in run.stderr
