"""Bags, packed sequences, message passing in scans, and mixtures of experts without dropping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.following.graph_batches import one_at_a_time

E, T, V, D, X = 4, 15, 11, 3, 3
IDS = np.r_[0, 0, 2, 2, 2, 0, 3, 3, 3, 3, 0, 2, 3, -1, -1].astype(np.int32)


def rows():
    r = np.random.default_rng(0)
    places = [sum(IDS[:i] == IDS[i]) for i in range(T)]
    senders = [r.choice(np.flatnonzero(IDS[i] == IDS)) for i in range(T)]
    return {
        "x": r.normal(size=(T, D)),
        "token": r.integers(0, V, T).astype(np.int32),
        "place": np.array(places, np.int32),
        "senders": np.array(senders, np.int32),
        "ids": IDS,
        "y": r.normal(size=E),
    }


def example(b, k):
    """Example k as a batch of its own."""
    own = b["ids"] == k
    senders = (np.cumsum(own) - 1)[b["senders"][own]].astype(np.int32)
    taken = {name: b[name][own] for name in ("x", "token", "place")}
    ids = np.zeros(own.sum(), np.int32)
    return taken | {"senders": senders, "ids": ids, "y": b["y"][[k]]}


def params():
    r = np.random.default_rng(1)
    shapes = {
        "table": (V, D),
        "places": (T, D),
        "w": (3, D, D),
        "u": (D, D),
        "router": (D, X),
        "experts": (X, D, D),
        "scale": (D,),
        "out": (D,),
    }
    return {name: r.normal(size=shape) for name, shape in shapes.items()}


def segments(p, b):
    own = dict.fromkeys(["x", "token", "place"], b["ids"])
    return own | {"senders": None, "ids": None, "y": 0}


def pooled(h, b):
    """Rows of nobody have a segment of their own, which is dropped."""
    count = len(b["y"])
    ids = jnp.where(b["ids"] < 0, count, b["ids"])
    return jax.ops.segment_sum(h, ids, count + 1)[:-1]


def squares(p, h, b):
    return (pooled(h, b) @ p["out"] - b["y"]) ** 2


def bags(p, b):
    return squares(p, p["table"][b["token"]], b)


def packed(p, b):
    """Rows by themselves, with LayerNorm and learned places, and the mean over each sequence."""
    x = b["x"] + p["table"][b["token"]] + p["places"][b["place"]]
    # The variance is chosen by a condition that is one number for all rows.
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3) * p["scale"]
    h = jax.nn.relu(x @ p["u"])
    counts = jnp.maximum(pooled(jnp.ones((len(x), 1)), b), 1)
    return (pooled(h, b) / counts @ p["out"] - b["y"]) ** 2


def attention_by_segment(p, b):
    """Softmax over the rows of each example, as in graph attention."""
    count = len(b["y"])
    ids = jnp.where(b["ids"] < 0, count, b["ids"])
    h = jnp.tanh(b["x"] @ p["u"])
    scores = h @ p["scale"]
    e = jnp.exp(scores - jax.ops.segment_max(scores, ids, count + 1)[ids])
    weights = e / jax.ops.segment_sum(e, ids, count + 1)[ids]
    return squares(p, weights[:, None] * h, b)


def step(p, b, h, w):
    heard = jax.ops.segment_sum(h[b["senders"]] @ p["u"], jnp.arange(len(h)), len(h))
    return jnp.tanh(h @ w + heard)


def rounds(p, b):
    h = b["x"]
    for w in p["w"]:
        h = step(p, b, h, w)
    return squares(p, h, b)


def scanned(p, b):
    h, _ = jax.lax.scan(lambda h, w: (step(p, b, h, w), None), b["x"], p["w"])
    return squares(p, h, b)


def behind(p, b):
    """Rows that parameters have reached are pooled, and layers lie behind that in a scan."""

    def layer(h, w):
        return jnp.tanh(h @ w), None

    h, _ = jax.lax.scan(layer, pooled(b["x"] @ p["u"], b), p["w"])
    return (h @ p["out"] - b["y"]) ** 2


def rematerialised(p, b):
    kept = jax.checkpoint(lambda h, w: (step(p, b, h, w), None))
    return squares(p, jax.lax.scan(kept, b["x"], p["w"])[0], b)


def carried(p, b):
    """At each step a row is made of another alone."""
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h[b["senders"]] @ w), None), b["x"], p["w"])
    return squares(p, h @ p["u"], b)


def decided(p, b):
    """Another row decides which of two things is done."""
    h = b["x"] @ p["w"][0]
    flags = jnp.sum(h @ p["u"], 1)[b["senders"]] > 0
    return squares(p, jnp.where(flags[:, None], h @ p["w"][1], jnp.sin(h) @ p["w"][2]), b)


def of_experts(p, b, held=hs.constant):
    """Rows sorted by expert, each group through its own weights, and back in their order."""
    logits = b["x"] @ p["router"]
    expert = held(jnp.argmax(logits, -1))
    order, sizes = jnp.argsort(expert), jnp.bincount(expert, length=X)
    made = jax.lax.ragged_dot(b["x"][order], p["experts"], sizes)
    h = jnp.zeros_like(made).at[order].set(made)
    gate = jnp.take_along_axis(jax.nn.softmax(logits), expert[:, None], 1)
    return squares(p, jnp.tanh(gate * h), b)


HEARING = [rounds, scanned, rematerialised, carried, decided]
MODELS = [bags, packed, attention_by_segment, of_experts, behind, *HEARING]
STATISTICS = {
    "each": hs.per_example(),
    "second": hs.second_moment(),
    "weighted": hs.weighted_mean(lambda n: 1 / (1 + n)),
    "crossed": hs.crossed(),
}


def mean_of(of_rows):
    return lambda p, b: jnp.mean(of_rows(p, b))


def found_of(of_rows, b, **how):
    with jax.enable_x64(True):
        asked = {"segments": segments, "statistics": STATISTICS} | how
        return jax.device_get(hs.grad(mean_of(of_rows), **asked)(params(), b)[1])


@pytest.mark.parametrize("strategy", ["lift", "loop"])
@pytest.mark.parametrize("model", MODELS)
def test_statistics_are_those_of_a_loop_over_examples(model, strategy):
    found = found_of(model, rows(), strategy=strategy)
    with jax.enable_x64(True):
        each = one_at_a_time(model, params(), [example(rows(), k) for k in range(E)])
    assert not found["crossed"].any()
    joint = np.concatenate([g.reshape(E, -1) for g in jax.tree.leaves(each)], 1)
    weights = 1 / (1 + np.linalg.norm(joint, axis=1))
    for key, g in each.items():
        np.testing.assert_allclose(found["each"][key], g, 1e-8, 1e-10)
        np.testing.assert_allclose(found["second"][key], (g**2).mean(0), 1e-8, 1e-10)
        wanted = np.tensordot(weights, g, 1) / E
        np.testing.assert_allclose(found["weighted"][key], wanted, 1e-8, 1e-10)


@pytest.mark.parametrize("model", HEARING)
def test_a_message_from_another_example_is_found(model):
    """Row 0, of example 0, hears row 3, of example 2."""
    b = rows() | {"senders": np.r_[3, rows()["senders"][1:]].astype(np.int32)}
    found = found_of(model, b)
    np.testing.assert_array_equal(found["crossed"], [True, False, True, False])
    with jax.enable_x64(True):
        each = one_at_a_time(model, params(), [example(rows(), k) for k in range(E)])
    for key in ("w", "out"):
        np.testing.assert_allclose(found["each"][key][[1, 3]], each[key][[1, 3]], 1e-8, 1e-10)
        assert np.isnan(found["each"][key][[0, 2]]).all()


def landing(p, b):
    """Of several owners the last is that of the target. No backward pass meets them again."""
    ids = jnp.where(b["place"] == 7, 3, jnp.where(b["ids"] < 0, E, b["ids"]))
    top = jax.lax.stop_gradient(jax.ops.segment_max(b["x"], ids, E + 1)[:-1])
    return (pooled(jnp.tanh(b["x"] @ p["u"]), b) @ p["out"] - top[:, 0] - b["y"]) ** 2


def choosing(p, b):
    """Row 0 does what row 3, of example 2, decides."""
    h = jnp.tanh(b["x"] @ p["u"])
    flags = jax.lax.broadcast_in_dim(b["x"][b["senders"], 0] > 0, h.shape, (0,))
    return squares(p, jax.lax.select(flags, h, 2 * h), b)


def carrying(p, b):
    """Row 0 gets what row 3, of example 2, has had two steps before, by way of nobody's row."""
    h, _ = jax.lax.scan(lambda h, _: (h[b["senders"]], None), b["x"], None, length=2)
    return squares(p, jax.lax.stop_gradient(h) * jnp.tanh(b["x"] @ p["u"]), b)


@pytest.mark.parametrize(
    ("model", "changed", "met"),
    [
        (landing, {"place": (2, 7)}, [False, False, True, True]),
        (choosing, {"senders": (0, 3)}, [True, False, True, False]),
        (carrying, {"senders": (0, 13)}, [True, False, True, False]),
    ],
)
def test_what_no_backward_pass_sees_is_found(model, changed, met):
    b = rows()
    b["senders"][13] = 3
    for name, (row, value) in changed.items():
        b[name][row] = value
    given = dict.fromkeys(["place", "ids", "senders"]) | {"x": IDS, "token": IDS, "y": 0}
    found = found_of(model, b, segments=lambda p, b: given)
    np.testing.assert_array_equal(found["crossed"], met)
    assert np.isnan(found["each"]["u"]).any((1, 2)).tolist() == met


def test_who_crossed_is_a_flag_where_some_are_padding_too():
    """And all are wrong where it is not known who is real, as under jit."""
    b = rows()
    b["real"] = np.array([True, True, True, False])

    def loss(p, b):
        return jnp.sum(jnp.where(b["real"], (pooled(b["x"] @ p["u"], b) ** 2).sum(1), 0)) / 3

    asked = hs.grad(
        loss,
        segments=lambda p, b: segments(p, b) | {"real": 0},
        is_real=lambda p, b: b["real"],
        statistics=hs.crossed(),
    )
    found = asked(params(), b)[1]
    unknown = jax.jit(asked)(params(), b | {"real": b["real"] * 2.0})[1]
    assert found.dtype == unknown.dtype == bool
    assert (~found).all()
    assert unknown.all()


def test_a_table_looked_up_at_given_places_is_one_sum():
    """Several examples add to a row of it, which is no crossing."""

    def given(p, b):
        return segments(p, b) | {"place": None}

    found = found_of(packed, rows(), segments=given)
    own = found_of(packed, rows())
    assert not found["crossed"].any()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-9), found, own)


def test_a_table_counts_decay_once():
    def plain(p, b):
        decay = 0.1 * jnp.sum(p["table"] ** 2) + 0.2 * jnp.sqrt(jnp.sum(p["out"] ** 2))
        return jnp.mean(bags(p, b)) + decay

    with jax.enable_x64(True):
        f = hs.grad(plain, segments=segments, statistics=hs.per_example())
        _, found = f(params(), rows())
        each = one_at_a_time(plain, params(), [example(rows(), k) for k in range(E)])
    for key in ("table", "out"):
        np.testing.assert_allclose(found[key], each[key], 1e-8, 1e-10)


def test_a_segment_of_nobody_that_is_cut_off_is_no_term():
    """Of a loss that is linear in what is pooled, too."""

    def linear(p, b):
        return pooled(jnp.tanh(p["table"][b["token"]]), b) @ p["out"]

    asked = {"each": hs.per_example(), "losses": hs.per_example_losses()}
    with jax.enable_x64(True):
        f = hs.value_and_grad(mean_of(linear), segments=segments, statistics=asked)
        _, found = f(params(), rows())
        each = one_at_a_time(linear, params(), [example(rows(), k) for k in range(E)])
        losses = [linear(params(), example(rows(), k))[0] for k in range(E)]
    np.testing.assert_allclose(found["losses"], losses, 1e-8, 1e-10)
    for key in ("table", "out"):
        np.testing.assert_allclose(found["each"][key], each[key], 1e-8, 1e-10)


def test_half_precision_is_as_exact_as_the_gradient():
    p = {name: x.astype(jnp.bfloat16) for name, x in params().items()}
    b = rows() | {"x": rows()["x"].astype(jnp.bfloat16), "y": rows()["y"].astype(jnp.bfloat16)}
    _, found = hs.grad(mean_of(packed), segments=segments, statistics=hs.norms())(p, b)
    with jax.enable_x64(True):
        each = one_at_a_time(packed, params(), [example(rows(), k) for k in range(E)])
    joint = np.concatenate([g.reshape(E, -1) for g in jax.tree.leaves(each)], 1)
    np.testing.assert_allclose(found, np.linalg.norm(joint, axis=1), 0.1)


def test_a_dumped_module_takes_ids_by_name():
    def own(p, b):
        return squares(p, jnp.tanh(b["x"] @ p["u"]), b)

    def loss(p, x, ids, y):
        return jnp.mean(own(p, {"x": x, "ids": ids, "y": y}))

    b = rows()
    with jax.enable_x64(True):
        args = {k: params()[k] for k in ("u", "out")}, b["x"], b["ids"], b["y"]
        text = jax.jit(jax.grad(loss)).lower(*args).as_text(debug_info=True)
        asked = {"batch": ["y"], "segments": {"x": "ids"}, "statistics": hs.norms()}
        found = hs.rewrite_module(text, **asked).jitted(*jax.tree.leaves(args))[-1]
        each = one_at_a_time(own, args[0], [example(b, k) for k in range(E)])
    joint = np.concatenate([g.reshape(E, -1) for g in jax.tree.leaves(each)], 1)
    np.testing.assert_allclose(found, np.linalg.norm(joint, axis=1), 1e-9)
