"""Segments: means of phi of a gradient that is a scatter of rows, from each example's own rows.

The references are gradients of one example at a time in float64. An element of a gradient is a sum
of at most LENGTH terms of size about 1, each with a few roundings, and the phis compared have
slopes of at most 1.
"""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import hlo_surgery as hs
from tests.strategies.test_fused import own_gradients

B, LENGTH, WIDTH = 5, 4, 3
TOLERANCE = 8 * LENGTH * float(jnp.finfo(jnp.float32).eps)


def cosine(g):
    """Of slope 1 at most, and 1 at zero."""
    return jnp.cos(g)


def loss_of(look_up):
    """The mean over the examples of what is looked up for them, weighted by factors."""
    return lambda w, ids, factors: jnp.sum(jnp.sin(look_up(w, ids)) * factors) / factors.shape[0]


def assert_segments(loss, w, ids, factors):
    """That the mean of cosines comes from segments, and is right; and so is the gradient."""
    asked = {"statistics": hs.mean_of(cosine), "strategy": "segments"}
    f = hs.grad(loss, batch_argnums=(1, 2), **asked)
    gradient, found = f(w, ids, factors)
    own = own_gradients(loss, w, ids, factors)
    (output,) = f.explain(w, ids, factors).outputs
    assert set(output.strategies.values()) == {"segments"}
    np.testing.assert_allclose(gradient, own.mean(0), rtol=TOLERANCE, atol=B * TOLERANCE)
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=TOLERANCE)
    assert found.dtype == jnp.float32


@st.composite
def tables(draw):
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    size, length = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    dtype = np.dtype(draw(st.sampled_from(["int8", "uint8", "int16", "int32", "uint32"])))
    low = 0 if dtype.kind == "u" else -rows - 2
    numbers = st.lists(
        st.integers(low, rows + 2),
        min_size=size * length * columns,
        max_size=size * length * columns,
    )
    ids = np.array(draw(numbers)).astype(dtype).reshape(size, length, columns)
    order = draw(st.permutations(range(columns + 1)))
    scale, mode = draw(st.sampled_from([1.0, -1.0, 0.5])), draw(st.sampled_from(["clip", "fill"]))
    return ids, rows, order, scale, mode


@given(tables())
def test_any_table(drawn):
    """Any number of columns, layouts of the table, repetitions, and indices beyond both ends."""
    ids, rows, order, scale, mode = drawn
    generator = np.random.default_rng(1)
    shape = np.array([rows] * ids.shape[-1] + [WIDTH])
    table = generator.normal(size=shape[np.argsort(order)]).astype(np.float32)
    factors = generator.uniform(-1, 1, size=(*ids.shape[:2], WIDTH)).astype(np.float32)

    def look_up(w, ids):
        columns = tuple(ids[..., c] for c in range(ids.shape[-1]))
        return (scale * w).transpose(order).at[columns].get(mode=mode, fill_value=0.5)

    assert_segments(loss_of(look_up), table, ids, factors)
