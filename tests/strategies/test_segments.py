"""Segments: means of phi of a gradient that is a scatter of rows, from each example's own rows.

The references are gradients of one example at a time in float64. An element of a gradient is a sum
of at most LENGTH terms of size about 1, each with a few roundings, and the phis compared have
slopes of at most 1.
"""

import os

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
# The kernels that compile faster compare an index of 8 bits to the length of an array, wrapped to 8
# bits.
NEEDS_DEFAULT_FLAGS = pytest.mark.skipif(
    "use_fusion_emitters=false" in os.environ["XLA_FLAGS"], reason="runs with XLA_FLAGS= set"
)
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


def test_a_sum_loss_and_another_example_axis():
    loss = loss_of(lambda w, ids: w[ids])
    total = lambda w, ids, factors: loss(w, ids.T, factors.swapaxes(0, 1)) * ids.shape[1]  # noqa: E731
    f = hs.grad(
        total, batch_argnums=(1, 2), in_axes=1, statistics=hs.mean_of(cosine), loss_reduction="sum"
    )
    arguments = (TABLE, IDS.T.copy(), FACTORS.swapaxes(0, 1).copy())
    gradient, found = f(*arguments)
    own = own_gradients(loss, TABLE, IDS, FACTORS)
    assert strategies(f, *arguments) == {"segments"}
    np.testing.assert_allclose(gradient, own.sum(0), rtol=TOLERANCE, atol=B * TOLERANCE)
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=TOLERANCE)


def test_one_token_each():
    loss = loss_of(lambda w, ids: w[ids])
    assert_segments(loss, TABLE, IDS[:, 0], FACTORS[:, 0])


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


def test_what_is_not_finite_stays_in_its_row():
    factors = FACTORS.copy()
    factors[1, 2, 0], factors[3, 0, 1] = np.inf, np.nan
    f = hs.grad(
        loss_of(lambda w, ids: w[ids]),
        batch_argnums=(1, 2),
        statistics=hs.mean_abs(),
        strategy="segments",
    )
    found = np.asarray(f(TABLE, IDS, factors)[1])
    expected = np.abs(own_gradients(loss_of(lambda w, ids: w[ids]), TABLE, IDS, factors)).mean(0)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert (~np.isfinite(found)).sum() == 2


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


def gathered(w, ids):
    """Rows looked up by indices of just this dtype, where `w[ids]` takes int32."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(w, ids[..., None], numbers, (1, WIDTH), mode="fill", fill_value=0.5)


def test_wide_indices_do_not_wrap():
    """A 64-bit index beyond 32 bits lies past the table's end."""
    ids = IDS.astype(np.int64)
    ids[0, 0], ids[1, 1], ids[2, 0] = 2**32 + 1, 2 - 2**32, 2**33
    with jax.enable_x64(True):
        f = hs.grad(
            loss_of(gathered),
            batch_argnums=(1, 2),
            statistics=hs.mean_of(cosine),
            strategy="segments",
        )
        found = f(TABLE, ids, FACTORS)[1]
    own = own_gradients(loss_of(gathered), TABLE, ids, FACTORS)
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "dtype", [*(pytest.param(t, marks=NEEDS_DEFAULT_FLAGS) for t in ("int8", "uint8")), "uint32"]
)
def test_narrow_indices_in_a_long_table(dtype):
    """A table may have more rows than its indices can name."""
    table = np.resize(TABLE, (300, WIDTH))
    ids = (60 * (IDS % 3)).astype(dtype)
    if dtype == "uint32":
        ids[0, 0] = 2**31 + 1
    assert_segments(loss_of(gathered), table, ids)


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


def tied(w, ids, factors):
    return loss_of(lambda w, ids: jnp.tanh(w[ids] @ w.T) @ w)(w, ids, factors)


def decayed(w, ids, factors):
    return loss_of(lambda w, ids: w[ids])(w, ids, factors) + 0.1 * jnp.sum(w**2)


def recurrent(w, ids, factors):
    def step(state, at):
        return jnp.tanh(state + w[at[0]] * at[1]), None

    start = jnp.zeros((ids.shape[0], WIDTH), w.dtype)
    return jnp.mean(jnp.sum(lax.scan(step, start, (ids.T, factors.swapaxes(0, 1)))[0], -1))


def looked_up_twice(w, ids, factors):
    return loss_of(lambda w, ids: w[ids] * w[(ids + 1) % ROWS])(w, ids, factors)


@pytest.mark.parametrize("loss", [tied, decayed, recurrent, looked_up_twice])
def test_what_is_more_than_one_scatter_has_no_segments(loss):
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.mean_of(cosine))
    found, own = f(TABLE, IDS, FACTORS)[1], own_gradients(loss, TABLE, IDS, FACTORS)
    assert "segments" not in strategies(f, TABLE, IDS, FACTORS)
    # Each element now sums over all rows of a table, forward and backward.
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=2 * ROWS * TOLERANCE)
    asked = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.mean_of(cosine), strategy="segments")
    with pytest.raises(ValueError, match="strategy='segments' does not apply to mean_of"):
        asked(TABLE, IDS, FACTORS)


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


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_microbatches_of_which_some_is_padding(examples):
    """A step's mean is over all that are real, of which it has some or none."""
    ids, factors = np.concatenate([IDS, IDS[:1] + 1]), np.concatenate([FACTORS, -FACTORS[:1]])
    real = np.array([1, 0, 0, 0, 1, 1], np.float32)

    def gradient(w, *batch):
        def step(state, part):
            ids, factors, own = part
            found = jax.grad(lambda w: jnp.sum(jnp.sin(w[ids]) * factors * own[:, None, None]))(w)
            return (state[0] + found, state[1] + own.sum()), None

        parts = [x.reshape(-1, examples, *x.shape[1:]) for x in batch]
        total, number = lax.scan(step, (jnp.zeros_like(w), jnp.zeros(())), tuple(parts))[0]
        return total / number

    f = hs.rewrite(
        gradient,
        batch_argnums=(1, 2, 3),
        statistics=hs.mean_of(cosine),
        is_real=3,
        strategy="segments",
    )
    found = f(TABLE, ids, factors, real)[1]
    own = own_gradients(loss_of(lambda w, ids: w[ids]), TABLE, ids[real == 1], factors[real == 1])
    np.testing.assert_allclose(found, np.cos(own).mean(0), rtol=0, atol=TOLERANCE)


def test_no_tokens():
    f = hs.grad(loss_of(lambda w, ids: w[ids]), batch_argnums=(1, 2), statistics=hs.mean_of(cosine))
    gradient, found = f(TABLE, IDS[:, :0], FACTORS[:, :0])
    np.testing.assert_array_equal(gradient, np.zeros_like(TABLE))
    np.testing.assert_array_equal(found, np.ones_like(TABLE))


def test_beside_other_statistics():
    loss, bound = loss_of(lambda w, ids: w[ids]), 0.5
    asked = {
        "cosines": hs.mean_of(cosine),
        "squares": hs.second_moment(),
        "norms": hs.norms(),
        "clipped": hs.clipped_mean(bound),
        "own": hs.per_example(),
    }
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=asked)
    found = f(TABLE, IDS, FACTORS)[1]
    own = own_gradients(loss, TABLE, IDS, FACTORS)
    norms = np.linalg.norm(own.reshape(B, -1), axis=1)
    expected = {
        "cosines": np.cos(own).mean(0),
        "squares": (own**2).mean(0),
        "norms": norms,
        "clipped": np.einsum("brd,b->rd", own, np.minimum(1, bound / norms)) / B,
        "own": own,
    }
    assert f.explain(TABLE, IDS, FACTORS).outputs[0].strategies["cosines"] == "segments"
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=4 * TOLERANCE, atol=4 * TOLERANCE, err_msg=name
        )


def test_nothing_as_large_as_a_table_for_each_example():
    size, rows = 6, 5000
    w, ids = (
        jax.ShapeDtypeStruct(*kind)
        for kind in (((rows, 8), jnp.float32), ((size, LENGTH), jnp.int32))
    )
    factors = jax.ShapeDtypeStruct((size, LENGTH, 8), jnp.float32)
    f = hs.grad(loss_of(lambda w, ids: w[ids]), batch_argnums=(1, 2), statistics=hs.mean_of(cosine))
    temporaries = jax.jit(f).lower(w, ids, factors).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < size * rows * 8 * 4


@pytest.mark.parametrize("phi", [jnp.ones_like, lambda g: jnp.abs(g) ** 0.0], ids=["one", "power"])
def test_rows_that_an_example_does_not_look_up_count_at_zero(phi):
    """Each example looks up one row: the others' mean is phi(0), also where phi is factorable."""
    asked = hs.mean_of(phi, factorable=True)
    found = hs.grad(lambda t, i: jnp.mean(jnp.sum(jnp.tanh(t[i]), 1)), statistics=asked)
    np.testing.assert_array_equal(found(TABLE, jnp.array([1, 3, 1]))[1], np.ones_like(TABLE))
