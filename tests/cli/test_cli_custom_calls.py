"""`--custom-call`: what it takes, and that every command that rewrites takes it."""

import jax
import jax.numpy as jnp
import pytest

from tests.cli.test_cli import SQUARES, answered, rejected

SCHUR = "lapack_sgees_ffi"
SOLVE = "lapack_strsm_ffi"
X = jax.ShapeDtypeStruct((4, 3, 3), jnp.float32)
ASKED = ("--batch", "x", *SQUARES)
DECLARED = ("--custom-call", f"{SCHUR}=0:0,-,-,-,0,0")


def by_features(w, x):
    weights = (jax.lax.linalg.schur(x)[0] ** 3).sum((1, 2))
    return jnp.mean(weights * jnp.tanh(x @ w).sum((1, 2)))


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
    shown = answered("inspect", file, *ASKED, *DECLARED).output
    assert f"taken on trust: {SCHUR} at " in shown
    assert "one by one along (0) -> (0, -, -, -, 0, 0)" in shown
    answered("rewrite", file, *ASKED, *DECLARED, "-o", out)
    assert "equivalent" in answered("verify", file, *ASKED, *DECLARED).output


def test_a_refusal_names_the_option(dumped):
    assert "--custom-call with the call's name" in rejected(
        "inspect", dumped(by_features), *ASKED, code=1
    )


def test_verify_says_of_a_wrong_word_that_it_was_trusted(dumped):
    declared = ("--custom-call", f"{SOLVE}=-,0:0")
    answer = answered("inspect", dumped(mixing), *ASKED, *declared).output
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
    assert said in rejected("inspect", dumped(by_features), *ASKED, "--custom-call", given)
