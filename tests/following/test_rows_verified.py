"""What ids say of rows, asked of the original by runs; and the command line's word for it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.verify import verify, verify_rewritten
from tests.cli.test_cli import SQUARES, answered, rejected

E, T, D = 3, 8, 2
IDS = np.array([0, 2, 2, 0, 1, 1, 2, E], np.int32)
SENDERS = np.array([3, 1, 6, 0, 5, 4, 2, 7], np.int32)
ASKED = {
    "batch": ["y"],
    "segments": {"x": "ids"},
    "statistics": {"norms": hs.norms(), "squares": hs.second_moment(), "crossed": hs.crossed()},
}


def pooled(h, ids):
    return jax.ops.segment_sum(h, ids, E)


def attending(w, x, ids, senders, y):
    """Messages, softmax over the rows of each example, and decay."""
    h = jnp.tanh(x @ w + jax.ops.segment_sum(x[senders] @ w, jnp.arange(T), T))
    e = jnp.exp(h.sum(1))
    own = e / pooled(e, ids)[ids]
    return jnp.mean((pooled(own[:, None] * h, ids).sum(1) - y) ** 2) + 0.1 * jnp.sum(w**2)


def packed(w, x, ids, senders, y):
    """Attention over all rows, masked by ids."""
    h = x @ w
    scores = jnp.where(ids[:, None] == ids[None, :], h @ h.T, -1e30) + 0 * senders.sum()
    return jnp.mean((pooled(jax.nn.softmax(scores) @ jnp.tanh(h), ids).sum(1) - y) ** 2)


def summed(w, x, ids, senders, y):
    own = pooled(jnp.tanh(x @ w).sum(1), ids) + 0 * senders.sum()
    return jnp.sum((own - y) ** 2)


def averaged(w, x, ids, senders, y):
    """Not a number for an example without rows."""
    own = pooled(jnp.tanh(x), ids) / pooled(jnp.ones((T, 1)), ids) + 0 * senders.sum()
    return jnp.mean(((own @ w).sum(1) - y) ** 2)


def unmasked(w, x, ids, senders, y):
    return jnp.sum(jnp.tanh(x @ w) ** 2) / E + 0 * (y.sum() + ids.sum() + senders.sum())


def inputs(ids=IDS, senders=SENDERS):
    r = np.random.default_rng(0)
    shapes = ((D, D), (T, D), (E,))
    w, x, y = (r.normal(size=shape).astype(np.float32) for shape in shapes)
    return [w, x, ids, senders, y]


def dumped(loss):
    gradient = jax.jit(jax.grad(loss), keep_unused=True)
    return gradient.lower(*inputs()).as_text(debug_info=True)


MODELS = [(attending, "mean"), (packed, "mean"), (summed, "sum")]


@pytest.mark.parametrize(("loss", "reduction"), MODELS)
def test_statistics_are_those_of_rows_by_themselves(loss, reduction):
    verdict = verify(dumped(loss), **ASKED, loss_reduction=reduction, inputs=inputs())
    assert verdict.verdict == "equivalent", verdict
    kinds = [c.kind for c in verdict.comparisons]
    assert kinds.count("statistic") == 3
    assert {"second difference", "mean of copies"} < {*kinds}


def test_ids_are_drawn_where_no_inputs_are_given():
    verdict = verify(dumped(summed), **ASKED, loss_reduction="sum")
    assert verdict.verdict == "equivalent", verdict


def test_statistics_by_other_ids_are_not_equivalent():
    """Rows are told apart by another argument, in which they belong to others."""
    original = hs.load(dumped(summed))
    how = "sum", "refuse", {}
    asked = {k: v for k, v in ASKED.items() if k != "segments"}
    wrong = hs.rewrite_module(original, **asked, segments={"x": "senders"}, loss_reduction="sum")
    request = make_request(original, *asked.values(), None, *how, segments=ASKED["segments"])
    other = np.roll(IDS % E, 1).astype(np.int32)
    assert verify_rewritten(original, wrong, request, inputs(senders=other)).verdict != "equivalent"
    right = hs.rewrite_module(original, **ASKED, loss_reduction="sum")
    assert verify_rewritten(original, right, request, inputs(senders=other)).verdict == "equivalent"


@pytest.mark.parametrize(
    ("loss", "given", "said"),
    [
        (attending, inputs(senders=np.r_[1, SENDERS[1:]].astype(np.int32)), "statistics are NaN"),
        (unmasked, inputs(), "rows of nobody"),
        (averaged, inputs(), "guard what divides"),
    ],
)
def test_what_is_no_statement_on_these_inputs(loss, given, said):
    verdict = verify(dumped(loss), **ASKED, inputs=given)
    assert verdict.verdict == "not applicable", verdict
    assert re.search(said, verdict.why), verdict.why


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_rows_of_nobody_that_reach_a_gradient_are_said(strategy):
    """A mean of a phi that knows no NaN is none, and no histogram counts."""
    phi = hs.mean_of(lambda g: jnp.where(g > 0, 1.0, 0.0))
    asked = {"positive": phi, "bins": hs.histogram([-1, 0, 1]), "crossed": hs.crossed()}
    f = hs.rewrite_module(dumped(unmasked), **ASKED | {"statistics": asked}, strategy=strategy)
    _, positive, bins, crossed = f.call(*inputs())
    assert np.isnan(positive).all()
    assert (np.asarray(bins) == -1).all()
    assert crossed.all()
    _, positive, bins, crossed = f.call(*inputs(np.where(IDS == E, 0, IDS)))
    assert not crossed.any()
    assert np.isfinite(positive).all()


def test_commands_that_rewrite_take_ids(tmp_path):
    file, out = tmp_path / "module.mlir", str(tmp_path / "out.mlir")
    file.write_text(dumped(summed))
    asked = (str(file), "--batch", "y", *SQUARES, "--loss-reduction", "sum")
    ids = "--segments", "x=ids"
    assert "3 examples" in answered("inspect", *asked, *ids).output
    answered("rewrite", *asked, *ids, "-o", out)
    assert "equivalent" in answered("verify", *asked, *ids).output
    assert "write ARG=IDS" in rejected("inspect", *asked, "--segments", "x")
    assert "--segments names 'x' twice" in rejected("inspect", *asked, *ids, *ids)
    assert "no argument is named 'who'" in rejected("inspect", *asked, "--segments", "x=who")
    assert "ids are integers" in rejected("inspect", *asked, "--segments", "x=y")
    assert "has both ids and" in rejected("inspect", *asked, *ids, "--segments", "1=senders")


def test_a_refusal_offers_no_contributions(tmp_path):
    def normalised(w, x, ids, y):
        h = jnp.tanh(x @ w)
        return jnp.mean((pooled(h - h.mean(0), ids).sum(1) - y) ** 2)

    file, (w, x, ids, _, y) = tmp_path / "module.mlir", inputs()
    file.write_text(jax.jit(jax.grad(normalised)).lower(w, x, ids, y).as_text(debug_info=True))
    asked = (str(file), "--batch", "y", *SQUARES)
    said = rejected("inspect", *asked, "--segments", "x=ids", code=1)
    assert "hs.constant" in said
    assert "contribution" not in said
