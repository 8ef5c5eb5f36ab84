"""What a rewriting adds: hlo-surgery diff, and scopes, which XLA keeps.

This folder alone tests the report page and `diff`.
"""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import hlo_surgery as hs
from hlo_surgery.cli.commands import main
from hlo_surgery.passes.emit.splice import scope_of
from hlo_surgery.passes.ir import mlir

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


@pytest.mark.parametrize("suffix", ["mlir", "mlirbc", "jax_export"])
def test_a_rewritten_file_tells_by_itself(module, tmp_path, suffix):
    out = tmp_path / f"rewritten.{suffix}"
    asked = ["--batch", "x", "--statistic", "second_moment"]
    assert CliRunner().invoke(main, ["rewrite", str(module), *asked, "-o", str(out)]).exit_code == 0
    assert diff(out, "--words") == diff(module, *asked, "--words")


def test_json(module):
    (found,) = json.loads(diff(module, "--batch", "x", "--json"))["additions"]
    scope = found["scope"]
    assert (scope["statistic"], scope["output"]) == ("second_moment", "result")
    assert {"op", "where", "mlir"} == set(found["ops"][0])


def test_a_module_that_was_not_rewritten(module):
    run = CliRunner().invoke(main, ["diff", str(module)])
    assert run.exit_code == 2
    assert "--batch" in run.stderr


def dense(w, x):
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"]))(w)


def test_scopes_name_statistic_output_and_strategy():
    source = jax.jit(dense).lower({"a": W, "b": W[0]}, X).as_text(debug_info=True)
    statistics = {"squares": hs.second_moment(), "norms": hs.norms()}
    rewritten = hs.modules.rewrite_module(source, batch=["x"], statistics=statistics)
    scopes = {str(scope_of(op)) for op in mlir.all_operations(rewritten.code)} - {"None"}
    plans = {output.name: output.strategies for output in rewritten.plan.outputs}
    for name in ("['a']", "['b']"):
        assert f"hlo_surgery/squares/{name}/{plans[name]['squares']}" in scopes
        assert f"hlo_surgery/norms/{name}/{plans[name]['norms']}" in scopes
    assert "hlo_surgery/norms/*/combine" in scopes
