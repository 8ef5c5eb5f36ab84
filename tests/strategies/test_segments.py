"""Segments: means of phi of a gradient that is a scatter of rows, from each example's own rows.

The references are gradients of one example at a time in float64. An element of a gradient is a sum
of at most LENGTH terms of size about 1, each with a few roundings, and the phis compared have
slopes of at most 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import hlo_surgery as hs

B, LENGTH, ROWS, WIDTH = 5, 4, 7, 3
TOLERANCE = 8 * LENGTH * float(jnp.finfo(jnp.float32).eps)
rng = np.random.default_rng(0)
TABLE = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
PAIRS = rng.normal(size=(3, 4, WIDTH)).astype(np.float32)
FACTORS = rng.uniform(-1, 1, size=(B, LENGTH, WIDTH)).astype(np.float32)
# Tokens repeat within an example and across examples; rows 4 to 6 are nobody's.
IDS = rng.integers(0, 4, (B, LENGTH))
IDS_OF_PAIRS = rng.integers(0, 3, (B, LENGTH, 2))
OUTSIDE = IDS.copy()
OUTSIDE[[0, 1, 2], [0, 1, 2]], OUTSIDE[3] = [ROWS + 3, -2, -ROWS - 5], 100


def cosine(g):
    """Of slope 1 at most, and 1 at zero."""
    return jnp.cos(g)


def loss_of(look_up):
    """The mean over the examples of what is looked up for them, weighted by factors."""
    return lambda w, ids, factors: jnp.sum(jnp.sin(look_up(w, ids)) * factors) / factors.shape[0]


def own_gradients(loss, w, *batch, reduction="mean"):
    """Each example's gradient, alone in a batch of one, in float64."""
    with jax.enable_x64(True):
        w, *batch = (
            x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x for x in (w, *batch)
        )
        alone = jax.vmap(lambda *example: jax.grad(loss)(w, *(x[None] for x in example)))
        return np.asarray(jax.jit(alone)(*batch))


def strategies(f, *arguments):
    (output,) = f.explain(*arguments).outputs
    return set(output.strategies.values())


def assert_segments(loss, w, ids, factors=FACTORS, strategy="auto", **how):
    """That the mean of cosines comes from segments, and is right; and so is the gradient."""
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.mean_of(cosine), strategy=strategy, **how)
    gradient, found = f(w, ids, factors)
    own = own_gradients(loss, w, ids, factors)
    assert strategies(f, w, ids, factors) == {"segments"}
    reduce = np.sum if how.get("loss_reduction") == "sum" else np.mean
    np.testing.assert_allclose(gradient, reduce(own, 0), rtol=TOLERANCE, atol=B * TOLERANCE)
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=TOLERANCE)
    assert found.dtype == jnp.float32


def heads(w, ids):
    return jax.vmap(lambda head: head[ids], out_axes=-2)(w).sum(-2)


def summed_within(w, ids):
    return jax.vmap(lambda own: jax.ops.segment_sum(w[own], own % LENGTH, num_segments=LENGTH))(ids)


LOOK_UPS = {
    "indexed": (lambda w, ids: w[ids], TABLE, IDS),
    "transposed": (lambda w, ids: w.T[ids], TABLE.T.copy(), IDS),
    "along the last axis": (lambda w, ids: jnp.moveaxis(w[:, ids], 0, -1), TABLE.T.copy(), IDS),
    "scaled, negated, transposed": (lambda w, ids: (-w.T / 3 * 2)[ids], TABLE.T.copy(), IDS),
    "numbers for rows": (lambda w, ids: w[ids][..., None], TABLE[:, 0].copy(), IDS),
    "two columns": (lambda w, ids: w[ids[..., 0], ids[..., 1]], PAIRS, IDS_OF_PAIRS),
    "two columns apart": (
        lambda w, ids: w[ids[..., 0], :, ids[..., 1]],
        PAIRS.swapaxes(1, 2).copy(),
        IDS_OF_PAIRS,
    ),
    "a table for each head": (heads, PAIRS, IDS),
    "flat": (lambda w, ids: w[ids.ravel()].reshape(*ids.shape, -1), TABLE, IDS),
    "examples fastest": (
        lambda w, ids: w[ids.T.ravel()].reshape(*ids.T.shape, -1).swapaxes(0, 1),
        TABLE,
        IDS,
    ),
    "example by example": (lambda w, ids: jax.vmap(lambda own: w[own])(ids), TABLE, IDS),
    "summed by segments": (summed_within, TABLE, IDS),
    "one row": (lambda w, ids: w[ids], TABLE[:1], 0 * IDS),
    "the same row everywhere": (lambda w, ids: w[ids], TABLE, 0 * IDS + 2),
    "no row that exists": (
        lambda w, ids: w.at[ids].get(mode="fill", fill_value=0.5),
        TABLE,
        IDS + ROWS,
    ),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_look_ups(name):
    look_up, table, ids = LOOK_UPS[name]
    assert_segments(loss_of(look_up), table, ids)


@pytest.mark.parametrize("mode", ["clip", "fill", "drop", "wrap"])
def test_indices_out_of_bounds(mode):
    if mode == "wrap":
        look_up = lambda w, ids: jnp.take(w, ids, axis=0, mode="wrap")  # noqa: E731
    elif mode == "drop":
        look_up = lambda w, ids: jnp.zeros_like(w).at[ids].add(w[ids], mode="drop")[ids % ROWS]  # noqa: E731
        look_up = jax.vmap(look_up, (None, 0))
    else:
        look_up = lambda w, ids: w.at[ids].get(mode=mode, fill_value=0.25)  # noqa: E731
    assert_segments(loss_of(look_up), TABLE, OUTSIDE)


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

    assert_segments(loss_of(look_up), table, ids, factors, "segments")


@pytest.mark.parametrize(
    "phi", [lambda g: jnp.log(jnp.abs(g)), lambda g: 1 / jnp.abs(g), lambda g: g / g]
)
def test_phi_that_is_not_finite_at_zero(phi):
    """Rows that all examples touch are finite; those that one does not are what phi is at zero."""
    ids = np.concatenate([np.tile([0, 1], (B, 1)), IDS[:, :2]], 1)
    loss = loss_of(lambda w, ids: w[ids])
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.mean_of(phi), strategy="segments")
    found, own = f(TABLE, ids, FACTORS)[1], own_gradients(loss, TABLE, ids, FACTORS)
    with np.errstate(all="ignore"):
        expected = np.asarray(phi(own)).mean(0)
    assert np.isfinite(expected[:2]).all()
    assert not np.isfinite(expected[2:]).all(1).any()
    slope = 1 / np.abs(own[:, :2]).min() ** 2
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * slope)


@pytest.mark.parametrize("scale", [np.inf, np.nan, -1.0])
def test_rows_of_no_example_are_scaled_too(scale):
    """A gradient scaled by what is not finite is finite nowhere; the sign of zero tells where it is
    negated.
    """

    def loss(w, scale, ids, factors):
        return loss_of(lambda w, ids: w[ids])(w * scale, ids, factors)

    def reciprocals(strategy):
        statistic = hs.mean_of(lambda g: 1 / g)
        f = hs.grad(loss, batch_argnums=(2, 3), statistics=statistic, strategy=strategy)
        return np.asarray(f(TABLE, np.float32(scale), IDS, FACTORS)[1])

    untouched = slice(4, ROWS)
    np.testing.assert_array_equal(
        reciprocals("segments")[untouched], reciprocals("lift")[untouched]
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("casts", [False, True])
def test_low_precision_tables(dtype, casts):
    """Rows of low precision are summed in float32: in a linear loss of 4 examples the updates
    themselves are exact.
    """
    size = 4
    factors, ids = np.asarray(jnp.asarray(FACTORS[:size], dtype)), IDS[:size]
    table = TABLE if casts else TABLE.astype(dtype)

    def loss(w, ids, factors):
        return (
            jnp.sum(w.astype(dtype)[ids].astype(jnp.float32) * factors.astype(jnp.float32))
            / ids.shape[0]
        )

    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment(), strategy="segments")
    gradient, found = f(table, ids, factors)
    own = np.zeros((size, *TABLE.shape))
    for b in range(size):
        np.add.at(own[b], ids[b], factors[b].astype(np.float64))
    assert gradient.dtype == table.dtype
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, (own**2).mean(0), rtol=TOLERANCE, atol=TOLERANCE)


def test_microbatches():
    """Gradients of one microbatch after the other, accumulated in a loop."""
    loss = loss_of(lambda w, ids: w[ids])
    ids, factors = np.concatenate([IDS, IDS[:1] + 1]), np.concatenate([FACTORS, -FACTORS[:1]])

    def gradient(w, ids, factors):
        def step(total, part):
            return total + jax.grad(loss)(w, *part), None

        parts = (ids.reshape(3, 2, LENGTH), factors.reshape(3, 2, LENGTH, WIDTH))
        return lax.scan(step, jnp.zeros_like(w), parts)[0] / 3

    found = hs.rewrite(gradient, batch_argnums=(1, 2), statistics=hs.mean_of(cosine))(
        TABLE, ids, factors
    )[1]
    own = own_gradients(loss, TABLE, ids, factors)
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=TOLERANCE)
