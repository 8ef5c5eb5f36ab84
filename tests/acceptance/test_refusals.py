"""Refusals word for word, as a user reads them; and the answers of `on_mixing="contribution"`."""

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from tests.axes.traps.test_traps import MIXING, SUMS
from tests.equivalence.test_fixtures import METAS, SQUARES, rewritten

MIXING_HELP, SUMS_HELP = f"  help:    {MIXING}", f"  help:    {SUMS}{MIXING}"

BATCH_NORM = (
    "mixing.py:19: refused: stablehlo.subtract: a sum over the examples (stablehlo.reduce at "
    "mixing.py:19) "
    "meets each example's own values\n"
    "  output:  ['bias'] (and 3 more)\n" + MIXING_HELP
)

CONTRASTIVE = (
    "mixing.py:31: refused: stablehlo.dot_general: each example meets others: "
    "the operands hold the examples along different or divided dimensions\n"
    "  output:  ['image'] (and 1 more)\n" + MIXING_HELP
)

CLIPPED = (
    "mixing.py:42: refused: stablehlo.multiply: two sums over the examples (the first by "
    "stablehlo.reduce at "
    "mixing.py:37) are multiplied\n"
    "  output:  ['bias'] (and 2 more)\n" + SUMS_HELP
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("batch_norm_training", BATCH_NORM),
        ("contrastive", CONTRASTIVE),
        ("global_norm_clip", CLIPPED),
    ],
)
def test_refusal_reads(name, text):
    with pytest.raises(hs.Refusal) as refused:
        rewritten(name, SQUARES)
    assert str(refused.value) == text


def test_a_phi_that_is_not_factorable():
    with pytest.raises(
        hs.Refusal, match=r"phi is declared factorable, but phi\(0.315 \* 3.96\) = 0.847, not 0.304"
    ):
        hs.mean_of(jnp.tanh, factorable=True)


def test_what_is_passed_already_is_no_help():
    def scaled(p, x):
        h = x @ p["w"]
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ h.T * p["t"])))

    f = hs.grad(scaled, statistics=hs.norms(), on_mixing="contribution")
    with pytest.raises(hs.Refusal) as refusal:
        f({"w": jnp.ones((3, 2)), "t": jnp.float32(2.0)}, jnp.ones((4, 3)))
    assert "the statistics of other parameters" in refusal.value.help
    assert "contribution" not in refusal.value.help


def test_the_attributes_of_a_refusal():
    with pytest.raises(hs.Refusal) as refused:
        rewritten("contrastive", SQUARES)
    assert refused.value.op == "stablehlo.dot_general"
    assert refused.value.where == f"{METAS['contrastive']['mixing']['file']}:31"
    assert refused.value.output == "['image'] (and 1 more)"
    assert refused.value.why in str(refused.value)
    assert refused.value.help in str(refused.value)
