"""What the command line says is in its own words: options, and numbers of things."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.cli.output import SPELLED
from hlo_surgery.requests.options import PlanningOptions
from tests.cli.test_cli import MLP, MLP_BATCH, answered, command, rejected

W, X = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((4, 3), jnp.float32)


def dumped(tmp_path, function, debug_info=True):
    file = tmp_path / "module.mlir"
    file.write_text(jax.jit(function).lower(W, X).as_text(debug_info=debug_info))
    return file


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


def test_every_keyword_has_its_option():
    keywords = (
        inspect.signature(hs.rewrite_module).parameters.keys()
        | PlanningOptions.__annotations__.keys()
    )
    assert keywords - {"module", "planning"} <= SPELLED.keys()
    shown = answered("verify", "--help").stdout
    assert all(option in shown for option in SPELLED.values() if option != "--segments")


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
