"""Modules that MLIR accepts, or breaks on, and nothing after can hold: one line, exit code 2.

This folder alone tests random programs, fixtures and dumps of any age; what is no module.
"""

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import hlo_surgery as hs
from hlo_surgery.cli.commands import main
from hlo_surgery.module import DEEPEST

T = "tensor<4x3xf32>"
ASKED = {"batch": [0], "statistics": hs.norms()}


def function(name, body, kind=""):
    return f"func.func {kind} @{name}(%x: {T}) -> {T} {{ {body} }}\n"


def calling(name):
    return f"%0 = call @{name}(%x) : ({T}) -> {T}\n return %0 : {T}"


RETURN = f"return %x : {T}"


def nested(depth):
    """Branches one in another."""
    leave = f'"stablehlo.return"(%x) : ({T}) -> ()'
    text = leave
    for i in range(depth):
        text = f'%{i} = "stablehlo.if"(%p) ({{ {text} }}, {{ {leave} }}) : (tensor<i1>) -> {T}\n'
        text += f'"stablehlo.return"(%{i}) : ({T}) -> ()'
    inner = text.rsplit("\n", 1)[0]
    return (
        f"func.func @main(%x: {T}, %p: tensor<i1>) -> {T} {{ {inner}\n return %{depth - 1} : "
        f"{T} }}\n"
    )


BAD = {
    "calls itself": function("main", calling("main")),
    "function @f calls itself, by way of @g": function("main", calling("f"))
    + function("f", calling("g"), "private")
    + function("g", calling("f"), "private"),
    "function @f has no blocks": function("main", calling("f"))
    + f"func.func private @f({T}) -> {T}\n",
    "function @main has 2 blocks": function("main", f"cf.br ^bb1\n^bb1:\n {RETURN}"),
    "2 public functions": function("a", RETURN) + function("b", RETURN),
    r"no UTF-8: \E9": f'func.func @main(%x: {T} loc("caf\\E9")) -> {T} {{ {RETURN} }}\n',
    r"no UTF-8: \C3": f'func.func @main(%x: {T}) -> ({T} {{jax.result_info = "\\C3x"}}) {{ '
    f"{RETURN} }}\n",
    r"no UTF-8: \E9\FF": function("main", 'call @"\\E9\\FF"() : () -> ()\n' + RETURN),
    "regions are nested more than": nested(DEEPEST + 1),
}


@pytest.mark.parametrize("said", BAD)
def test_modules_that_are_none(said, tmp_path):
    (tmp_path / "bad.mlir").write_text(BAD[said])
    with pytest.raises(ValueError, match=r"module|function"):
        hs.modules.load(tmp_path / "bad.mlir")
    for command in (["inspect"], ["run"], ["compile"], ["cost"]):
        result = CliRunner().invoke(main, [*command, str(tmp_path / "bad.mlir")])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert said in result.stderr


def test_a_closed_pipe_ends_a_command_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    code = "from hlo_surgery.cli.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "statistics"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


TEXT = jax.jit(jnp.tanh).lower(jnp.ones(3)).as_text(debug_info=True)
OTHER_TEXTS = {
    "HLO": (jax.jit(jnp.tanh).lower(jnp.ones(3)).as_text("hlo"), "it is HLO text, as"),
    "a jaxpr": (str(jax.make_jaxpr(jnp.tanh)(jnp.ones(3))), "it is a jaxpr"),
    "the first half": (TEXT[: len(TEXT) // 2], "so that it may be cut short"),
    "all but the end": (TEXT[:-9], "so that it may be cut short"),
    "an unknown dialect": (TEXT.replace("stablehlo.", "xhlo."), "Dialect `xhlo' not found"),
}


@pytest.mark.parametrize(("text", "said"), OTHER_TEXTS.values(), ids=OTHER_TEXTS)
def test_other_texts_are_named_in_one_line(text, said):
    with pytest.raises(ValueError, match="this is no StableHLO module: ") as problem:
        hs.modules.load(text)
    message = str(problem.value)
    assert said in message
    assert "dump one with jax.jit(f).lower(...).as_text(debug_info=True)" in message
    assert "\n" not in message
    assert "Available dialects" not in message


@pytest.mark.parametrize(
    "use", [hs.modules.load, hs.targets.cost, lambda x: hs.modules.rewrite_module(x, **ASKED)]
)
@pytest.mark.parametrize("name", ["nofile.mlir", "func/module", "x" * 999])
def test_a_name_of_no_file(use, name):
    with pytest.raises(ValueError, match=r"there is no file .*; pass pathlib.Path\(...\)") as said:
        use(name)
    assert len(str(said.value)) < 200
