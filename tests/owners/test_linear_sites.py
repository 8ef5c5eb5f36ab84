"""Sums over the examples by any linear op: an example's share is what the op makes of it alone.

A value of zeros makes nothing of each of these functions, so that c_b is the function where all
other examples are zero: an oracle that knows no op.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.products import covering

B, D = 4, 3
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(B, D)), jnp.float32)
W = jnp.asarray(rng.normal(size=D), jnp.float32)
SHARED = jnp.asarray(rng.normal(size=(B, D)), jnp.float32)
ORDER = jnp.array([2, 0, 3, 1])


def place(w):
    """A number that is known when the function runs: 1 for W."""
    return (jnp.abs(w).sum() > 0).astype(jnp.int32)


# What one array of the examples' values [B, D], and one number, are made into, linearly.
OPS = {
    "slice at a place": lambda h, k: lax.dynamic_slice(h, (k, 0), (1, D)),
    "slice of two": lambda h, k: lax.dynamic_slice(h, (k, k), (2, 2)),
    "row at a place": lambda h, k: lax.dynamic_index_in_dim(h, k, 0, keepdims=False),
    "rows at places": lambda h, k: h[(ORDER + k) % B],
    "row and column": lambda h, k: h[k, jnp.minimum(k, D - 1)][None],
    "written at a place": lambda h, k: lax.dynamic_update_slice(h[::-1], h[:1], (k, 0)),
    "written over zeros": lambda h, k: lax.dynamic_update_slice(jnp.zeros((B, D)), h[:2], (k, 0)),
    "rows put at places": lambda h, k: jnp.zeros((B, D)).at[(ORDER + k) % 2].set(h[0]),
    "rows added at places": lambda h, k: jnp.zeros((2, D)).at[(ORDER + k) % 2].add(h),
    "differences": lambda h, k: h[1:] - h[:-1],
    "halves": lambda h, k: h[:2] + 2 * h[2:],
    "reversed": lambda h, k: h + h[::-1],
    "rolled": lambda h, k: h - jnp.roll(h, 1, 0),
    "accumulated": lambda h, k: jnp.cumsum(h, 0),
    "accumulated from behind": lambda h, k: lax.cumsum(h, 0, reverse=True),
    "windows": lambda h, k: lax.reduce_window(h, 0.0, lax.add, (2, 1), (2, 1), "VALID"),
    "overlapping windows": lambda h, k: lax.reduce_window(h, 0.0, lax.add, (3, 1), (1, 1), "SAME"),
    "convolved": lambda h, k: lax.conv(h.T[None], jnp.ones((2, D, 2)), (1,), "VALID"),
    "padded": lambda h, k: (
        lax.pad(h[:2], 0.0, ((1, 1, 1), (0, 0, 0))) + lax.pad(h, 0.0, ((0, 1, 0), (0, 0, 0)))
    ),
    "beside each other": lambda h, k: jnp.concatenate([h[:1] + h[1:2], h]),
    "transformed": lambda h, k: jnp.fft.rfft(h, axis=0).real,
    "solved": lambda h, k: jnp.linalg.solve(jnp.eye(B) * 2 + 0.1, h),
    "contracted with a matrix": lambda h, k: SHARED.T @ h,
    "each with a matrix": lambda h, k: jnp.einsum("ab,bd->ad", jnp.eye(B) + 1, h),
    "outer of two": lambda h, k: jnp.einsum("bd,bd->", h, SHARED) * jnp.ones((2, 2)),
    "in groups": lambda h, k: h.reshape(2, 2, D).sum(1),
    "in other groups": lambda h, k: h.reshape(2, 2, D).swapaxes(0, 1).sum(1),
    "in groups of another order": lambda h, k: h[np.array([2, 0, 3, 1])].reshape(2, 2, D).sum(1),
    "in groups from behind": lambda h, k: h[::-1].reshape(2, 2, D).sum(0),
    "windows of a loop": lambda h, k: lax.scan(
        lambda c, i: (c, lax.dynamic_slice(h, (i, 0), (2, D))), 0, jnp.arange(B - 1)
    )[1].sum(0),
    "in mixed rows": lambda h, k: h.reshape(2, 6).sum(0),
    "summed by columns": lambda h, k: h.T.reshape(6, 2).sum(1),
    "chosen": lambda h, k: jnp.where(k > 0, h, h[::-1]),
    "chosen by rows": lambda h, k: jnp.where(jnp.arange(B)[:, None] < k, h, h[::-1]),
    "in a branch": lambda h, k: lax.cond(k > 0, lambda: h[::-1] + h, lambda: 2 * h),
    "switched": lambda h, k: lax.switch(k, [lambda: h, lambda: h[::-1]]),
    "narrowed": lambda h, k: (h + h[::-1]).astype(jnp.bfloat16).astype(jnp.float32),
    "mean of neighbours": lambda h, k: (h[:2] + h[2:]) / 2 - h.mean(0),
}


def in_steps(of):
    """The op inside a loop whose steps take the examples one after the other."""
    return lambda h, k: lax.scan(lambda s, e: (s + of(h, k) * e[0], None), of(h, k) * 0, SHARED)[0]


def of_microbatches(of):
    """The op of what a loop over halves of the batch made."""

    def made(h, k):
        return of(lax.map(lambda rows: 2 * rows, h.reshape(2, 2, D)).reshape(B, D), k)

    return made


def at_steps(of):
    """The op of an array of which a step has scaled its own row."""

    def made(h, k):
        def step(total, b):
            return total + of(h.at[b].multiply(2.0), k), None

        return lax.scan(step, of(h, k) * 0, jnp.arange(B))[0]

    return made


FORMS = {"alone": lambda of: of, "in": in_steps, "parts": of_microbatches, "at": at_steps}
# Elements are sums of a few products of numbers of size 1; bfloat16 has 8 bits.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# What is no sum of floats over the examples, nor a row for each.
REFUSED = {
    "beside each other": "each example meets others",
    "switched": "now in one way, now in another",
}


def gradient_by(form, name):
    op = FORMS[form](OPS[name])
    return lambda w, x: op(jnp.sin(x * w), place(w))


# Loops are lifted whatever the strategy, so that one is enough for them.
IN_LOOPS = [("in", "auto"), ("parts", "lift"), ("at", "auto")]
LINEAR = [name for name in OPS if name not in REFUSED]


@cache
def of_all_and_of_each(form, name):
    """What the function makes of all examples, and of each with zeros for the others."""
    gradient = jax.jit(gradient_by(form, name))
    alone = [gradient(W, X * (jnp.arange(B) == b)[:, None]) for b in range(B)]
    return gradient(W, X), B * np.stack(alone).astype(np.float64)


@pytest.mark.parametrize("name", LINEAR)
def test_shares_of_an_op_by_itself(name):
    assert_shares_are_those_of_examples_alone(name, "alone", "auto")


@pytest.mark.parametrize(
    ("name", "how"), covering(LINEAR, [("alone", "lift"), ("alone", "loop"), *IN_LOOPS])
)
def test_shares_by_other_strategies_and_in_loops(name, how):
    assert_shares_are_those_of_examples_alone(name, *how)


def assert_shares_are_those_of_examples_alone(name, form, strategy):
    gradient = gradient_by(form, name)
    asked = {"each": hs.per_example(), "square": hs.second_moment(), "norms": hs.norms()}
    rewritten = hs.rewrite(gradient, batch_argnums=1, statistics=asked, strategy=strategy)
    plain, found = rewritten(W, X)
    whole, wanted = of_all_and_of_each(form, name)
    tolerance = CLOSE if name != "narrowed" else {"rtol": 2e-2, "atol": 2e-2}
    np.testing.assert_allclose(plain, whole, **tolerance)
    np.testing.assert_allclose(found["each"], wanted, **tolerance)
    np.testing.assert_allclose(found["square"], (wanted**2).mean(0), **tolerance)
    norms = np.linalg.norm(wanted.reshape(B, -1), axis=1)
    np.testing.assert_allclose(found["norms"], norms, **tolerance)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_sum_is_refused(form, name):
    rewritten = hs.rewrite(gradient_by(form, name), batch_argnums=1, statistics=hs.norms())
    with pytest.raises(hs.Refusal, match=REFUSED[name]) as refused:
        rewritten(W, X)
    assert refused.value.where.startswith(__file__)
