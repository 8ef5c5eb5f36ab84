"""What the command line says is in its own words: options, and numbers of things."""

import inspect
import re
import shlex

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.cli.output import SPELLED, spelled
from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.ir import errors
from hlo_surgery.requests import gradient_outputs
from hlo_surgery.requests.options import PlanningOptions
from hlo_surgery.rewriting import pipeline
from tests.cli.test_cli import CONTRASTIVE, MLP, MLP_BATCH, SQUARES, answered, command, rejected

W, X = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((4, 3), jnp.float32)
PYTHON = re.compile(rf"\b({'|'.join(SPELLED)})=|batch_argnums")


def clipped(w, x):
    g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
    return g * jnp.minimum(1, 1 / jnp.linalg.norm(g))


def dumped(tmp_path, function, debug_info=True):
    file = tmp_path / "module.mlir"
    file.write_text(jax.jit(function).lower(W, X).as_text(debug_info=debug_info))
    return file


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_refusal_names_options(json):
    result = command("inspect", CONTRASTIVE, "--batch", "2", "--batch", "3", *json)
    assert result.exit_code == 1
    assert result.output.count("--on-mixing contribution") == 1 + len(json)
    assert "on_mixing" not in result.output


def test_clipping_inside_is_told_to_go_outside(tmp_path):
    said = rejected("inspect", dumped(tmp_path, clipped), "--batch", "x", code=1)
    assert "apply gradients outside" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--loss-reduction", "total"), "error: --loss-reduction is 'total'; it is one of"),
        (("--on-mixing", "ignore"), "error: --on-mixing is 'ignore'"),
        (("--strategy", "ghost"), "error: --strategy ghost does not apply to second_moment"),
        (("--strategy", "fast"), "error: --strategy is 'fast'"),
        (("--shards", "0"), "error: --shards is 0"),
        (("--memory-budget", "0"), "error: --memory-budget is 0"),
        (("--is-real", "x"), "error: --is-real must hold"),
        (("--gradient", "0", "--gradient", "0"), "error: --gradient names output"),
    ],
)
def test_an_error_names_options(wrong, said):
    assert rejected("inspect", MLP, *MLP_BATCH, *wrong).startswith(said)


def test_texts_of_the_library_name_options():
    texts = (
        errors.SUMS_HELP,
        errors.LOSS_HELP,
        pipeline.PADDING_HELP,
        reasons.PICKING_HELP,
        str(gradient_outputs.UnclearGradients("", {})),
    )
    for text in texts:
        assert PYTHON.search(text), text
        assert not PYTHON.search(spelled(text)), spelled(text)


def test_every_keyword_has_its_option():
    keywords = (
        inspect.signature(hs.rewrite_module).parameters.keys()
        | PlanningOptions.__annotations__.keys()
    )
    assert keywords - {"module", "planning"} <= SPELLED.keys()
    shown = answered("verify", "--help").stdout
    assert all(option in shown for option in SPELLED.values() if option != "--segments")


def test_a_question_ends_with_options_for_the_shell(tmp_path):
    """Typed as they are, they answer it."""
    file = dumped(tmp_path, lambda w, x: (jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w), w / 2))
    said = rejected("inspect", file, "--batch", "x")
    assert said.endswith("for those like w pass --gradient '[0]'")
    typed = shlex.split(said.rpartition("pass ")[2])
    assert "gradients: [0]" in answered("inspect", file, "--batch", "x", *typed).stdout


def test_names_of_the_users_stay():
    for text in (
        "no argument is named 'is_real'; there are strategy, loss",
        "['loss'] is float32[]",
        "x.py:3: gradients",
    ):
        assert spelled(text) == text


def test_an_argument_that_nothing_uses_is_said_to_be_left_out(tmp_path):
    file = tmp_path / "module.mlir"
    unused = jax.jit(jax.grad(lambda p, x: jnp.mean(jnp.tanh(x["x"] @ p))))
    file.write_text(unused.lower(W, {"x": X, "ids": X}).as_text(debug_info=True))
    said = rejected("inspect", file, "--batch", "x['ids']")
    assert said.rstrip().endswith("unless given keep_unused=True")


def test_one_is_no_plural(tmp_path):
    file = dumped(tmp_path, jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w))))
    assert "1 output of the original, 1 statistic" in answered(
        "rewrite", file, "--batch", "x", *SQUARES, "-o", tmp_path / "out.mlir"
    ).stdout.replace("statistics", "?")


def test_names_that_were_not_dumped(tmp_path):
    file = dumped(tmp_path, jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w))), debug_info=False)
    assert "debug_info=True" in rejected("inspect", file, "--batch", "x")
    assert "debug_info" not in rejected("inspect", MLP, "--batch", "y")


def test_a_seed_of_a_statistic_is_no_option():
    message = "write projected(k, seed=0), with strategy='auto'"
    assert spelled(message) == "write projected(k, seed=0), with --strategy auto"


@pytest.mark.parametrize(
    "given", [["inspect"], ["inspect", "--batch", "x"], ["diff", "--batch", "x"]]
)
def test_names_say_nothing_to_a_terminal(tmp_path, given):
    file = dumped(tmp_path, lambda w, x: {"NAME": jax.grad(lambda w: jnp.mean(x @ w))(w)})
    text = file.read_text().replace("NAME", r"\1B[31m").replace(__file__, r"\1B[31m")
    file.write_text(text)
    result = command(given[0], file, *given[1:])
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert r"\x1b[31m" in result.output
