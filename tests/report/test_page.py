"""The page of hlo-surgery report: what it shows, that it loads nothing and runs nothing."""

import re

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from hlo_surgery.cli.commands import main

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\"'&"
X, W = jnp.sin(jnp.arange(24.0)).reshape(8, 3), jnp.cos(jnp.arange(9.0)).reshape(3, 3)


def separable(w, x):
    """Two layers, so that there are many rows."""

    def loss(w):
        hidden = x
        for layer in w.values():
            hidden = jnp.tanh(hidden @ layer["kernel"] + layer["bias"])
        return jnp.mean(hidden)

    return jax.grad(loss)(w)


def half_refused(w, x):
    """Of the second parameter alone examples meet on the way to the gradient."""
    own = jax.grad(lambda a: jnp.mean(jnp.tanh(x @ a)))(w["own"])
    mixed = jax.grad(lambda b: jnp.mean((x @ b - jnp.mean(x @ b, 0)) ** 3))(w["mixed"])
    return {"own": own, "mixed": mixed}


MODULES = {
    "separable": (separable, {f"layer{i}": {"kernel": W, "bias": W[0]} for i in range(2)}),
    "hostile": (separable, {HOSTILE: {"kernel": W, "bias": W[0]}}),
    "refused": (half_refused, {"own": W, "mixed": W}),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each module, written by the command; with its exit code."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, (function, w) in MODULES.items():
        module, out = folder / f"{name}.mlir", folder / f"{name}.html"
        module.write_text(jax.jit(function).lower(w, X).as_text(debug_info=True))
        asked = ["--batch", "x", "--statistic", "second_moment", "--statistic", "norms"]
        run = CliRunner().invoke(main, ["report", str(module), *asked, "-o", str(out)])
        written[name] = out, run.exit_code
    return written


def test_exit_codes(pages):
    assert {name: code for name, (_, code) in pages.items()} == {
        "separable": 0,
        "hostile": 0,
        "refused": 1,
    }


@pytest.mark.parametrize("name", MODULES)
def test_a_page_names_nothing_to_load(pages, name):
    text = pages[name][0].read_text()
    assert not re.search(r"\b(src|href|action|xlink:href)=|@import|url\(", strip_text(text))


def strip_text(html):
    """The page's tags and style, without what is written between tags."""
    return "".join(re.findall(r"<style>.*?</style>|<[^>]*>", html, re.DOTALL))


def test_contractions_tails_gradients_and_refusals_are_shown(pages):
    """Gradients of two layers that are alike are shown once; a refusal beside its line."""
    shown = {
        name: re.findall(r'<g class="box (\w+)"[^>]*><title>([^<\n]*)', pages[name][0].read_text())
        for name in ("separable", "refused")
    }
    kinds = [kind for kind, _ in shown["separable"]]
    assert [kinds.count(kind) for kind in ("site", "tail", "gradient")] == [2, 2, 2]
    assert ("refusal", "refused: [&#x27;mixed&#x27;]") in shown["refused"]
    assert ("gradient", "[&#x27;own&#x27;]") in shown["refused"]
    (line,) = [title for kind, title in shown["refused"] if kind == "refused"]
    assert re.fullmatch(r".*test_page\.py:\d+", line)
