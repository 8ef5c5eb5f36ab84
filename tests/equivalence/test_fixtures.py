"""Every fixture, a dumped gradient module: held to its references, or refused at the right line."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
METAS = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(FIXTURES.glob("*/meta.json"))
}
SEPARABLE = [name for name, meta in METAS.items() if meta["verdict"] != "not separable"]
NOT_SEPARABLE = [name for name, meta in METAS.items() if meta["verdict"] == "not separable"]


SQUARES = {"second_moment": hs.second_moment()}


def options(name):
    """Its example axes by argument, and how its loss is reduced."""
    axes = enumerate(a["example_axis"] for a in METAS[name]["arguments"])
    batch = {i: axis for i, axis in axes if axis is not None}
    return {"batch": batch, "loss_reduction": METAS[name]["loss_reduction"]}


def rewritten(name, statistics):
    text = (FIXTURES / name / "module.mlir").read_text()
    return hs.modules.rewrite_module(text, statistics=statistics, **options(name))


def inputs(name):
    stored = np.load(FIXTURES / name / "inputs.npz")
    return [
        jnp.asarray(stored[f"arg{i}"], a["dtype"]) for i, a in enumerate(METAS[name]["arguments"])
    ]


def references(name):
    """The gradients, then the second moments, in the order a rewritten module returns them."""
    stored = np.load(FIXTURES / name / "reference.npz")
    count = len(METAS[name]["gradients"])
    return [stored[f"{kind}{k}"] for kind in ("grad", "second_moment") for k in range(count)]


@pytest.mark.first(3)
@pytest.mark.parametrize("name", SEPARABLE)
def test_rewritten_module_gives_the_references(name):
    meta, wanted = METAS[name], references(name)
    outputs = [
        np.asarray(output, np.float32) for output in rewritten(name, SQUARES).call(*inputs(name))
    ]
    labels = [
        f"{kind} {gradient}"
        for kind in ("gradient", "second moment")
        for gradient in meta["gradients"]
    ]
    for label, got, want in zip(labels, outputs, wanted, strict=True):
        np.testing.assert_allclose(
            got, want, rtol=0, atol=meta["tolerance"] * np.abs(want).max(), err_msg=label
        )


@pytest.mark.parametrize("name", NOT_SEPARABLE)
def test_not_separable_is_refused_where_the_examples_meet(name):
    with pytest.raises(hs.Refusal) as refused:
        rewritten(name, SQUARES)
    mixing = METAS[name]["mixing"]
    where = re.search(rf"{re.escape(mixing['file'])}:(\d+)", str(refused.value.where))
    assert where, f"{refused.value.where} names no line of {mixing['file']}"
    first, last = mixing["lines"]
    assert first <= int(where[1]) <= last, (
        f"{where[0]} is outside {mixing['function']}, lines {first} to {last}"
    )
