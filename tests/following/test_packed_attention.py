"""Attention over packed rows, masked by ids: statistics against one example at a time; and what a
mask lets through, found as the program runs.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.following.graph_batches import one_at_a_time

E, T, D, H, LAYERS = 3, 10, 4, 2, 2
IDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, -1], np.int32)
PLACES = np.array([0, 1, 2, 0, 1, 0, 1, 2, 3, 0], np.int32)


def rows():
    r = np.random.default_rng(0)
    x, y = r.normal(size=(T, D)), r.normal(size=E)
    return {"x": x, "ids": IDS, "seen": IDS, "place": PLACES, "y": y}


def example(b, k):
    """Example k as a batch of its own."""
    own = b["ids"] == k
    ids = np.zeros(own.sum(), np.int32)
    return {"x": b["x"][own], "place": b["place"][own], "ids": ids, "seen": ids, "y": b["y"][[k]]}


def params():
    r = np.random.default_rng(1)
    square = {name: r.normal(size=(LAYERS, D, D)) for name in ("q", "k", "v", "w")}
    return square | {"out": r.normal(size=D), "heat": np.float64(0.7), "near": r.normal(size=4)}


def segments(p, b):
    return {"x": b["ids"], "ids": None, "seen": None, "place": None, "y": 0}


def squares(p, h, b):
    count = len(b["y"])
    ids = jnp.where(b["ids"] < 0, count, b["ids"])
    return (jax.ops.segment_sum(h, ids, count + 1)[:-1] @ p["out"] - b["y"]) ** 2


def same(b):
    """`seen`: the ids that the mask goes by."""
    return b["seen"][:, None] == b["seen"][None, :]


def layer(p, number):
    return {name: p[name][number] for name in ("q", "k", "v", "w")} | {"heat": p["heat"]}


def attend(w, x, b, weights):
    """One head; `weights` of scores."""
    scores = (x @ w["q"]) @ (x @ w["k"]).T * w["heat"]
    return x + jnp.tanh(weights(scores, b) @ (x @ w["v"]) @ w["w"])


def infinite(s, b):
    return jax.nn.softmax(jnp.where(same(b), s, -jnp.inf))


def large(s, b):
    return jax.nn.softmax(jnp.where(same(b), s, jnp.finfo(s.dtype).min))


def bias(s, b):
    return jax.nn.softmax(s + jnp.where(same(b), 0, -1e9))


def chosen(s, b):
    return jax.nn.softmax(s, where=same(b))


def causal(s, b):
    mask = same(b) & (b["place"][:, None] >= b["place"][None, :])
    return jax.nn.softmax(jnp.where(mask, s, -jnp.inf))


def by_columns(s, b):
    """The queries lie along the second dimension."""
    return jax.nn.softmax(jnp.where(same(b), s.T, -jnp.inf), axis=0).T


def linear(s, b):
    return same(b) * s


def sigmoid(s, b):
    return jnp.where(same(b), jax.nn.sigmoid(s), 0)


def one_layer(weights):
    def of_rows(p, b):
        return squares(p, attend(layer(p, 0), b["x"], b, weights), b)

    return of_rows


def heads(p, b):
    """As jax.nn.dot_product_attention takes them."""
    x, w = b["x"], layer(p, 0)
    q, k, v = ((x @ w[name]).reshape(1, len(x), H, D // H) for name in ("q", "k", "v"))
    made = jax.nn.dot_product_attention(q, k, v, mask=same(b)[None, None])
    return squares(p, x + jnp.tanh(made.reshape(len(x), D) @ w["w"]), b)


def near(p, b):
    """A learned term for each distance, chosen by one-hot rows of given distances."""
    x, w = b["x"], layer(p, 0)
    apart = jnp.clip(jnp.abs(b["place"][:, None] - b["place"][None, :]), 0, 3)
    bias = jax.nn.one_hot(apart, 4, dtype=x.dtype) @ p["near"]
    scores = (x @ w["q"]) @ (x @ w["k"]).T + bias
    return squares(p, jnp.tanh(infinite(scores, b) @ x), b)


def looked_up(p, b):
    """The same, by a table: its gradient is scattered."""
    x, w = b["x"], layer(p, 0)
    apart = jnp.clip(jnp.abs(b["place"][:, None] - b["place"][None, :]), 0, 3)
    scores = (x @ w["q"]) @ (x @ w["k"]).T + p["near"][apart]
    return squares(p, jnp.tanh(infinite(scores, b) @ x), b)


def additive(p, b):
    """Scores that are no product: each row's own beside the others'."""
    x, w = b["x"], layer(p, 0)
    scores = jnp.tanh((x @ w["q"])[:, None] + (x @ w["k"])[None, :]).sum(-1)
    return squares(p, x + infinite(scores, b) @ (x @ w["v"]), b)


def unrolled(p, b):
    x = b["x"]
    for number in range(LAYERS):
        x = attend(layer(p, number), x, b, infinite)
    return squares(p, x, b)


def scanned(p, b, body=lambda f: f):
    @body
    def step(x, w):
        return attend(w | {"heat": p["heat"]}, x, b, infinite), None

    stacked = {name: p[name] for name in ("q", "k", "v", "w")}
    return squares(p, jax.lax.scan(step, b["x"], stacked)[0], b)


def rematerialised(p, b):
    return scanned(p, b, jax.checkpoint)


WEIGHTS = [infinite, large, bias, chosen, causal, by_columns, linear, sigmoid]
FORMS = {f.__name__: one_layer(f) for f in WEIGHTS}
FORMS |= {
    f.__name__: f for f in (heads, near, looked_up, additive, unrolled, scanned, rematerialised)
}
STATISTICS = {
    "each": hs.per_example(),
    "second": hs.second_moment(),
    "weighted": hs.weighted_mean(lambda n: 1 / (1 + n)),
    "crossed": hs.crossed(),
}


def found_of(of_rows, b, **how):
    with jax.enable_x64(True):
        asked = {"segments": segments, "statistics": STATISTICS} | how
        f = hs.grad(lambda p, b: jnp.mean(of_rows(p, b)), **asked)
        return jax.device_get(f(params(), b)[1])


@cache
def each_of(of_rows):
    with jax.enable_x64(True):
        return one_at_a_time(of_rows, params(), [example(rows(), k) for k in range(E)])


def close(found, wanted, rounding=1e-8):
    def each(a, b):
        np.testing.assert_allclose(a, b, rounding, rounding * 1e-2)

    jax.tree.map(each, found, wanted)


@pytest.mark.parametrize(
    ("form", "strategy"),
    [*((form, "lift") for form in FORMS), ("causal", "loop"), ("rematerialised", "loop")],
)
def test_statistics_are_those_of_a_loop_over_examples(form, strategy):
    found, each = found_of(FORMS[form], rows(), strategy=strategy), each_of(FORMS[form])
    # That of jax.nn.dot_product_attention takes its softmax in float32.
    assert_close = partial(close, rounding=1e-4 if form == "heads" else 1e-8)
    assert not found["crossed"].any()
    joint = np.concatenate([g.reshape(E, -1) for g in jax.tree.leaves(each)], 1)
    weights = 1 / (1 + np.linalg.norm(joint, axis=1))
    assert_close(found["each"], each)
    assert_close(found["second"], jax.tree.map(lambda g: (g**2).mean(0), each))
    wanted = jax.tree.map(lambda g: np.tensordot(weights, g, 1) / E, each)
    assert_close(found["weighted"], wanted)


def alone(form, k):
    """Whether what an example has is what it has by itself."""
    return jax.tree.map(lambda g: g[k], each_of(FORMS[form]))


def assert_spoiled(found, examples):
    """That nothing is said of what these have, of the first layer at least."""
    of_first = [found["each"][name][examples, 0] for name in ("q", "k")]
    assert all(np.isnan(g).all() for g in [*of_first, found["each"]["out"][examples]])


@pytest.mark.parametrize("form", ["infinite", "bias", "looked_up", "scanned"])
def test_a_mask_that_is_off_by_one_row_is_found(form):
    """Row 3, of example 1, is masked as a row of example 0."""
    b = rows() | {"seen": np.r_[IDS[:3], 0, IDS[4:]].astype(np.int32)}
    found = found_of(FORMS[form], b)
    np.testing.assert_array_equal(found["crossed"], [True, True, False])
    kept = jax.tree.map(lambda g: g[2], found["each"])
    close(kept, alone(form, 2))
    assert_spoiled(found, [0, 1])


def test_ids_may_be_the_rows_own():
    """Then the mask itself rests on pairs of rows."""

    def own(p, b):
        return segments(p, b) | {"seen": b["ids"], "place": b["ids"]}

    found = found_of(FORMS["causal"], rows(), segments=own)
    assert not found["crossed"].any()
    close(found["each"], each_of(FORMS["causal"]))


def test_rows_that_the_ids_give_to_another_are_found():
    """The ids of `segments` are others than those that the mask and the sums go by."""
    other = np.r_[1, IDS[1:]].astype(np.int32)

    def given(p, b):
        return segments(p, b) | {"x": other}

    found = found_of(FORMS["infinite"], rows(), segments=given)
    np.testing.assert_array_equal(found["crossed"], [True, True, False])


def test_weights_that_are_small_and_not_zero_are_found():
    def soft(s, b):
        return jax.nn.softmax(s + jnp.where(same(b), 0, -30.0))

    found = found_of(one_layer(soft), rows())
    assert found["crossed"].all()
    assert_spoiled(found, [0, 1, 2])


def masked_row(value):
    """Row 0 sees nothing, its own example's rows neither."""

    def weights(s, b):
        return jax.nn.softmax(jnp.where(same(b) & (jnp.arange(len(s))[:, None] > 0), s, value))

    return one_layer(weights)


def test_a_row_that_sees_nothing_sees_all_if_the_mask_is_finite():
    found = found_of(masked_row(-1e9), rows())
    assert found["crossed"].all()
    assert_spoiled(found, [0, 1, 2])


@pytest.mark.parametrize("soft", [False, True])
def test_a_row_of_nobody_that_sees_all_meets_all(soft):
    """The last row, of which nobody is said to have read."""

    def weights(s, b):
        mask = same(b) | (b["ids"] < 0)[:, None]
        return jax.nn.softmax(jnp.where(mask, s, -jnp.inf)) if soft else jnp.where(mask, s, 0)

    assert found_of(one_layer(weights), rows())["crossed"].all()


def test_a_row_that_is_not_a_number_spoils_all_that_it_meets():
    found = found_of(masked_row(-jnp.inf), rows())
    assert_spoiled(found, [0, 1, 2])


@pytest.mark.parametrize("what", [np.inf, np.nan])
def test_a_value_that_is_not_finite_spoils_others_where_the_weight_is_zero(what):
    """0 times infinity is not a number: hiding it behind a choice must not make a number of it."""

    def hiding(p, b):
        x, w = b["x"], layer(p, 0)
        values = jnp.where(b["place"] == 3, what, 1)[:, None] * (x @ w["v"])
        made = sigmoid((x @ w["q"]) @ (x @ w["k"]).T, b) @ values
        return squares(p, jnp.where(jnp.isfinite(made), made, 0), b)

    assert found_of(hiding, rows())["crossed"].all()


def test_weights_below_the_others_maximum_alone_do_not_count():
    """Scores that are cut off from above by what another example has are not its own."""

    def cut(s, b):
        s = jnp.where(same(b), s, 0.0)
        return jnp.where(same(b), jnp.exp(s - jax.lax.stop_gradient(s.max(1, keepdims=True))), 0)

    found = found_of(one_layer(cut), rows())
    with jax.enable_x64(True):
        w, x = layer(params(), 0), rows()["x"]
        own = jnp.where(same(rows()), (x @ w["q"]) @ (x @ w["k"]).T * w["heat"], -jnp.inf)
        below = np.asarray(own.max(1) < 0)[:-1]
    assert below.any()
    met = np.unique(IDS[:-1][below])
    assert found["crossed"][met].all()


def unmasked(s, b):
    return jax.nn.softmax(s)


def by_total(s, b):
    return same(b) * s / jnp.sum(same(b) * s)


def ranked(s, b):
    return jax.nn.softmax(jnp.sort(jnp.where(same(b), s, -jnp.inf), 1))


def in_a_branch(s, b):
    """Nothing can be asked of what may not run."""
    return jax.lax.cond(b["place"][0] == 0, infinite, causal, s, b)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (in_a_branch, "not followed"),
        (unmasked, "rows of all other examples"),
        (by_total, "a sum over the examples|rows of all other examples"),
        (ranked, "along the example axis"),
    ],
)
def test_refused(weights, said):
    with pytest.raises(hs.Refusal, match=said) as refusal:
        found_of(one_layer(weights), rows())
    assert "test_packed_attention.py" in str(refusal.value)


def test_the_way_out_of_what_is_refused_is_said():
    with pytest.raises(hs.Refusal, match=r"padded to \[B, L\], and jax.vmap over it"):
        found_of(one_layer(unmasked), rows())
