"""Random chains of what is done to rows, with random ids: statistics against one example at a time,
and with an edge between two examples in half of them.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import hlo_surgery as hs
from tests.following.graph_batches import one_at_a_time

E, T, D = 3, 9, 2


def dense(w, h, b):
    return jnp.tanh(h @ w)


def messages(w, h, b):
    return h + jax.ops.segment_sum(jax.nn.relu(h[b["senders"]] @ w), b["receivers"], len(h))


def turned(w, h, b):
    return jnp.tanh(h[::-1] @ w)[::-1]


def halves(w, h, b):
    cut = len(h) // 2
    return jnp.concatenate([jnp.sin(h[:cut] @ w), jnp.cos(h[cut:] @ w) - 1])


def transposed(w, h, b):
    return jnp.sin(w.T @ h.T).T


def split(w, h, b):
    pairs = (h @ w).reshape(len(h), D, 1) * h.reshape(len(h), 1, D)
    return h + pairs.sum(1)


def padded(w, h, b):
    wide = jnp.pad(h, ((1, 2), (0, 0)))
    return jnp.tanh(wide @ w)[1 : len(h) + 1]


def masked(w, h, b):
    return jnp.where(b["mask"][:, None], h @ w, 0.5 * h)


def normalised(w, h, b):
    return h / (1 + jnp.linalg.norm(h @ w, axis=1, keepdims=True))


def pooled(w, h, b):
    own = jax.ops.segment_sum(h, b["own"], b["count"] + 1)
    return jnp.tanh(h + (own @ w)[b["own"]])


def softmax(w, h, b):
    scores, count = jnp.sum(h @ w, 1), b["count"] + 1
    e = jnp.exp(scores - jax.ops.segment_max(scores, b["own"], count)[b["own"]])
    return h * (e / jax.ops.segment_sum(e, b["own"], count)[b["own"]])[:, None]


def scanned(w, h, b):
    return jax.lax.scan(lambda h, _: (messages(w, jnp.tanh(h), b), None), h, None, length=2)[0]


def sorted_rows(w, h, b):
    order = jnp.argsort(hs.constant(h[:, 0]))
    return jnp.zeros_like(h).at[order].set(jnp.tanh(h[order] @ w))


HEARS = (messages, scanned)
STEPS = [dense, messages, turned, halves, transposed, split, padded, masked, normalised]
STEPS += [pooled, softmax, scanned, sorted_rows]
# What depends on the place of a row, or on other rows' order, is the same only of the whole batch.
BY_PLACE = (halves,)


def losses(steps, p, b):
    h = b["x"]
    for step, w in zip(steps, p["w"], strict=True):
        h = step(w, h, b)
    sums = jax.ops.segment_sum(h, b["own"], b["count"] + 1)[: b["count"]]
    return (sums @ p["out"] - b["y"]) ** 2


def owned(b, count):
    """Where each row belongs, that of nobody behind the last; `count` examples."""
    return b | {"own": jnp.where(b["ids"] < 0, count, b["ids"]), "count": count}


def batch(r):
    ids = r.integers(-1, E, T).astype(np.int32)
    ends = [(i, r.choice(np.flatnonzero(ids == ids[i]))) for i in r.integers(0, T, T)]
    senders, receivers = np.array(ends, np.int32).T
    mask = r.integers(0, 2, T).astype(bool)
    shared = {"x": r.normal(size=(T, D)), "y": r.normal(size=E), "mask": mask, "ids": ids}
    return shared | {"senders": senders, "receivers": receivers}


def example(b, k):
    own, edges = b["ids"] == k, b["ids"][b["receivers"]] == k
    places = np.cumsum(own) - 1
    ends = {name: places[b[name][edges]].astype(np.int32) for name in ("senders", "receivers")}
    rows = {name: b[name][own] for name in ("x", "mask")}
    return rows | ends | {"ids": np.zeros(own.sum(), np.int32), "y": b["y"][[k]]}


def crossed_ends(b, r):
    """An edge from one example's row to another's, and which these are; None where there is one."""
    real = np.flatnonzero(b["ids"][b["receivers"]] >= 0)
    if not len(real):
        return None
    edge = r.choice(real)
    own = b["ids"][b["receivers"][edge]]
    others = np.flatnonzero((b["ids"] >= 0) & (b["ids"] != own))
    if not len(others):
        return None
    sender = r.choice(others)
    senders = b["senders"].copy()
    senders[edge] = sender
    return b | {"senders": senders}, sorted([own, b["ids"][sender]])


def segments(p, b):
    given = dict.fromkeys(["mask", "ids", "senders", "receivers"])
    return given | {"x": b["ids"], "y": 0}


def statistics_of(steps, p, b, strategy):
    asked = {"each": hs.per_example(), "crossed": hs.crossed(), "norms": hs.norms()}
    how = {"segments": segments, "statistics": asked, "strategy": strategy}
    return jax.device_get(
        hs.grad(lambda p, b: jnp.mean(losses(steps, p, owned(b, E))), **how)(p, b)[1]
    )


@given(
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.sampled_from(["lift", "loop"]),
    st.booleans(),
)
def test_random_rows(steps, seed, strategy, crosses):
    steps = [step for step in steps if step not in BY_PLACE] or [dense]
    r = np.random.default_rng(seed)
    b = batch(r)
    crossing = crossed_ends(b, r) if crosses and any(s in HEARS for s in steps) else None
    b, met = crossing or (b, [])
    p = {"w": 0.7 * r.normal(size=(len(steps), D, D)), "out": r.normal(size=D)}
    with jax.enable_x64(True):
        found = statistics_of(steps, p, b, strategy)
        of_one = partial(losses, steps)
        alone = [k for k in range(E) if k not in met]
        each = one_at_a_time(of_one, p, [owned(example(b, k), 1) for k in alone])
    assert np.flatnonzero(found["crossed"]).tolist() == met
    assert np.flatnonzero(np.isnan(found["norms"])).tolist() == met
    for key in p:
        np.testing.assert_allclose(found["each"][key][alone], each[key], 1e-7, 1e-9)
