"""Rows that ids tell apart: graphs and experts, against one example's rows at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ops import segment_max, segment_sum

import hlo_surgery as hs

RNG = np.random.default_rng(0)
SIZES = (3, 1, 4, 2)
IDS = RNG.permutation(np.repeat(np.arange(4), SIZES))
EDGE_IDS = RNG.permutation(np.repeat(np.arange(4), [5, 2, 7, 3]))
SENDERS, RECEIVERS = (
    np.array([RNG.choice(np.flatnonzero(b == IDS)) for b in EDGE_IDS]) for _ in range(2)
)
GRAPHS = {
    "nodes": RNG.normal(size=(10, 3)),
    "edges": RNG.normal(size=(17, 2)),
    "ids": IDS,
    "senders": SENDERS,
    "receivers": RECEIVERS,
    "target": RNG.normal(size=4),
}
SHAPES = {"a": (3, 4), "b": (4, 4), "c": (10, 4), "out": (4, 1), "near": (4, 1), "far": (4, 1)}
PARAMS = {k: RNG.normal(size=s) / np.sqrt(s[0]) for k, s in SHAPES.items()}


def whose(params, graphs):
    known = dict.fromkeys(graphs)
    return known | {"nodes": graphs["ids"], "edges": EDGE_IDS, "target": 0}


def one(b):
    """The rows of one graph."""
    nodes, edges = b == IDS, b == EDGE_IDS
    places = np.cumsum(nodes) - 1
    return {
        "nodes": GRAPHS["nodes"][nodes],
        "edges": GRAPHS["edges"][edges],
        "ids": np.zeros(nodes.sum(), int),
        "senders": places[SENDERS[edges]],
        "receivers": places[RECEIVERS[edges]],
        "target": GRAPHS["target"][b : b + 1],
    }


def read_out(p, graphs, nodes):
    pooled = segment_sum(nodes, graphs["ids"], len(graphs["target"]))
    return jnp.mean(((pooled @ p["out"])[:, 0] - graphs["target"]) ** 2)


def passing_messages(p, graphs):
    nodes, count = jnp.tanh(graphs["nodes"] @ p["a"]), len(graphs["nodes"])
    ends = nodes[graphs["senders"]], nodes[graphs["receivers"]]
    messages = jnp.tanh(jnp.concatenate([*ends, graphs["edges"]], -1) @ p["c"])
    return read_out(p, graphs, nodes + segment_sum(messages, graphs["receivers"], count))


def attending(p, graphs):
    """As graph attention does: a softmax over what comes to a node, and no node's own row."""
    sent, received, count = graphs["senders"], graphs["receivers"], len(graphs["nodes"])
    nodes = graphs["nodes"] @ p["a"]
    logits = jax.nn.leaky_relu((nodes[sent] @ p["near"] + nodes[received] @ p["far"])[:, 0])
    weights = jnp.exp(logits - segment_max(logits, received, count)[received])
    weights /= segment_sum(weights, received, count)[received]
    made = segment_sum(weights[:, None] * nodes[sent], received, count)
    return read_out(p, graphs, jax.nn.elu(made))


def scanned(p, graphs):
    @jax.checkpoint
    def layer(nodes, _):
        heard = segment_sum(nodes[graphs["senders"]], graphs["receivers"], len(nodes))
        return jnp.tanh((nodes + heard) @ p["b"]), None

    return read_out(p, graphs, lax.scan(layer, graphs["nodes"] @ p["a"], length=2)[0])


def convolving(p, graphs):
    """With self-edges, and each node's degree."""
    own = jnp.arange(len(graphs["nodes"]))
    sent, received = (jnp.concatenate([graphs[k], own]) for k in ("senders", "receivers"))
    scale = lax.rsqrt(segment_sum(jnp.ones(len(sent)), received, len(own)))[:, None]
    nodes = segment_sum((graphs["nodes"] @ p["a"] * scale)[sent], received, len(own)) * scale
    return read_out(p, graphs, segment_sum((jax.nn.relu(nodes) @ p["b"])[sent], received, len(own)))


def normalised(p, graphs):
    """By graph: its nodes' mean and largest values."""
    nodes, ids, count = graphs["nodes"] @ p["a"], graphs["ids"], len(graphs["target"])
    mean = segment_sum(nodes, ids, count) / segment_sum(jnp.ones(len(ids)), ids, count)[:, None]
    return read_out(p, graphs, jnp.tanh(nodes - mean[ids]) + segment_max(nodes, ids, count)[ids])


def of_nodes(p, graphs):
    """A term for each node, without any output of a graph's."""
    nodes = jax.checkpoint(lambda x: jnp.tanh(x @ p["a"]))(graphs["nodes"])
    errors = ((nodes @ p["out"])[:, 0] - graphs["target"][graphs["ids"]]) ** 2
    return jnp.mean(segment_sum(errors, graphs["ids"], len(graphs["target"])))


def gradients_alone(loss, params, examples):
    own = [jax.grad(loss)(params, example) for example in examples]
    return jax.tree.map(lambda *g: jnp.stack(g), *own)


def norms_of(gradients):
    leaves = jax.tree.leaves(gradients)
    return jnp.sqrt(sum((g**2).reshape(len(g), -1).sum(1) for g in leaves))


def hold(found, own):
    norms = norms_of(own)
    scale = jnp.minimum(1, 0.3 / norms) / len(norms)
    wanted = {
        "rows": own,
        "mean": jax.tree.map(lambda g: g.mean(0), own),
        "norms": norms,
        "squares": jax.tree.map(lambda g: (g**2).mean(0), own),
        "weighted": jax.tree.map(lambda g: jnp.einsum("b,b...->...", scale, g), own),
        "crossed": jnp.zeros(len(norms), bool),
    }
    for name, statistic in found.items():
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12),
            statistic,
            wanted[name],
        )


STATISTICS = {
    "rows": hs.per_example(),
    "norms": hs.norms(),
    "squares": hs.second_moment(),
    "weighted": hs.weighted_mean(lambda n: jnp.minimum(1, 0.3 / n)),
    "crossed": hs.crossed(),
}
LOSSES = [passing_messages, scanned, convolving, normalised, of_nodes]


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("loss", "strategy"),
    [*((loss, "auto") for loss in (*LOSSES, attending)), (attending, "lift"), (convolving, "loop")],
)
def test_graphs_are_told_apart(loss, strategy):
    f = hs.grad(loss, segments=whose, statistics=STATISTICS, strategy=strategy)
    gradient, found = f(PARAMS, GRAPHS)
    own = gradients_alone(loss, PARAMS, map(one, range(4)))
    hold(found, own)
    hold({"mean": gradient}, own)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(0, 9, 1, 0), (10, 0, 0, 0), (2, 3, 2, 3)])
def test_a_loop_reads_as_many_rows_as_an_example_has(sizes):
    """Of few examples none, of others several windows; products, sums and rows of a table."""
    ids = RNG.permutation(np.repeat(np.arange(4), sizes))
    rows, words = RNG.normal(size=(10, 3)), RNG.integers(0, 5, 10)
    params = {"a": RNG.normal(size=(3, 4)), "b": RNG.normal(size=4), "t": RNG.normal(size=(5, 4))}

    def loss(p, rows, words, ids, count):
        made = jnp.tanh(rows @ p["a"] + p["b"] + p["t"][words])
        return jnp.mean(jnp.sum(segment_sum(made, ids, count) ** 2, 1))

    statistics = {"rows": hs.per_example(), "squares": hs.second_moment()}
    given = partial(loss, ids=ids, count=4)
    asked = {"batch_argnums": (1, 2), "is_real": np.ones(4), "statistics": statistics}
    f = hs.grad(given, segments=lambda *_: (ids, ids), strategy="loop", **asked)
    own = [
        jax.grad(loss)(params, rows[ids == b], words[ids == b], np.zeros(sizes[b], int), 1)
        for b in range(4)
    ]
    hold(f(params, rows, words)[1], jax.tree.map(lambda *g: jnp.stack(g), *own))


@pytest.mark.slow
def test_a_graph_of_padding_is_left_out():
    real = np.array([True, True, False, True])

    def loss(p, graphs):
        errors = per_graph(p, graphs)
        return jnp.sum(jnp.where(real[: len(errors)], errors, 0)) / 3

    def per_graph(p, graphs):
        count = len(graphs["target"])
        pooled = segment_sum(jnp.tanh(graphs["nodes"] @ p["a"]), graphs["ids"], count)
        return ((pooled @ p["out"])[:, 0] - graphs["target"]) ** 2

    statistics = {k: STATISTICS[k] for k in ("norms", "squares")}
    f = hs.grad(loss, segments=whose, statistics=statistics, is_real=real)
    found = f(PARAMS, GRAPHS)[1]
    alone = [jax.grad(lambda p, g: per_graph(p, g)[0])(PARAMS, one(b)) for b in (0, 1, 3)]
    own = jax.tree.map(lambda *g: jnp.stack(g), *alone)
    hold({"squares": found["squares"]}, own)
    np.testing.assert_allclose(found["norms"][real], norms_of(own))


def crossing(graphs, at):
    """The graphs with one edge from a node of another."""
    other = np.flatnonzero((EDGE_IDS[at] + 1) % 4 == IDS)[0]
    return graphs | {"senders": np.concatenate([SENDERS[:at], [other], SENDERS[at + 1 :]])}


@pytest.mark.first(1)
@pytest.mark.parametrize("loss", [passing_messages, attending, scanned])
def test_graphs_that_an_edge_joins_are_named(loss):
    f = jax.jit(hs.grad(loss, segments=whose, statistics=STATISTICS))
    found = f(PARAMS, crossing(GRAPHS, 6))[1]
    met = np.isin(np.arange(4), [EDGE_IDS[6], (EDGE_IDS[6] + 1) % 4])
    np.testing.assert_array_equal(found["crossed"], met)
    np.testing.assert_array_equal(jnp.isnan(found["norms"]), met)
    alone = [jax.grad(loss)(PARAMS, one(b)) for b in np.flatnonzero(~met)]
    own = jax.tree.map(lambda *g: jnp.stack(g), *alone)
    hold({"rows": jax.tree.map(lambda g: g[~met], found["rows"])}, own)
    assert all(jnp.isnan(x).all() for x in jax.tree.leaves((found["squares"], found["weighted"])))


def test_ids_of_one_axis_that_differ_are_named():
    def loss(p, x, y):
        return jnp.mean(segment_sum(jnp.tanh(x @ p["a"])[:, 0] * y, IDS, 4))

    def ids(p, x, y):
        return jnp.asarray(IDS), jnp.asarray(IDS).at[0].set((IDS[0] + 1) % 4)

    real, statistics = np.ones(4), hs.crossed()
    f = hs.grad(loss, batch_argnums=(1, 2), segments=ids, is_real=real, statistics=statistics)
    found = f(PARAMS, GRAPHS["nodes"], GRAPHS["nodes"][:, 0])[1]
    np.testing.assert_array_equal(found, np.isin(np.arange(4), [IDS[0], (IDS[0] + 1) % 4]))


@pytest.mark.slow
def test_a_module_has_the_ids_as_an_argument():
    lowered = jax.jit(jax.grad(attending), keep_unused=True).lower(PARAMS, GRAPHS)
    module = hs.rewrite_module(
        lowered.as_text(debug_info=True),
        batch=["graphs['target']"],
        segments={"graphs['nodes']": "graphs['ids']"},
        statistics=hs.norms(),
    )
    arrays = jax.tree.leaves((PARAMS, GRAPHS))
    norms = norms_of(gradients_alone(attending, PARAMS, map(one, range(4))))
    np.testing.assert_allclose(module.call(*arrays)[-1], norms)


def test_a_train_step_takes_graphs():
    optax = pytest.importorskip("optax")
    asked = {"norms": hs.norms()}
    step = hs.train_step(attending, optax.sgd(0.5), segments=whose, statistics=asked)
    params = jax.tree.map(jnp.asarray, PARAMS)
    new, _, metrics = step(params, optax.sgd(0.5).init(params), GRAPHS)
    own = gradients_alone(attending, PARAMS, map(one, range(4)))
    np.testing.assert_allclose(metrics["norms"], norms_of(own))
    moved = jax.tree.map(lambda p, g: p - 0.5 * g.mean(0), PARAMS, own)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-12), new, moved)


def routed(p, x, mark, chosen):
    """Tokens of all examples, each at its experts, as many as are chosen."""
    tokens = x.reshape(-1, x.shape[-1])
    gates, experts = lax.top_k(jax.nn.softmax(tokens @ p["router"]), chosen)
    experts = mark(experts).ravel()
    order = jnp.argsort(experts)
    sizes = jnp.bincount(experts, length=p["experts"].shape[0]).astype(jnp.int32)
    made = lax.ragged_dot(tokens[order // chosen], p["experts"], sizes)
    back = made[jnp.argsort(order)].reshape(*gates.shape, -1)
    return jnp.mean(jnp.sum(back * gates[..., None], 1) ** 2)


EXPERTS = {"router": RNG.normal(size=(3, 5)), "experts": RNG.normal(size=(5, 3, 4))}
TOKENS = RNG.normal(size=(4, 6, 3))
OF_EXPERTS = {k: STATISTICS[k] for k in ("rows", "norms", "squares", "crossed")}


@pytest.mark.first(1)
@pytest.mark.parametrize(("chosen", "strategy"), [(1, "auto"), (2, "lift"), (2, "loop")])
def test_experts_without_a_capacity_are_exact(chosen, strategy):
    def loss(p, x):
        return routed(p, x, hs.constant, chosen)

    asked = {"statistics": OF_EXPERTS, "strategy": strategy}
    found = hs.grad(loss, segments=lambda p, x: 0, **asked)(EXPERTS, TOKENS)[1]
    hold(found, gradients_alone(loss, EXPERTS, TOKENS[:, None]))


@pytest.mark.parametrize("segments", [None, lambda p, x: 0])
def test_routing_that_is_not_marked_names_the_way_out(segments):
    def loss(p, x):
        return routed(p, x, lambda e: e, 1)

    with pytest.raises(hs.Refusal, match=r"docs/guides/segments\.md") as refusal:
        hs.grad(loss, segments=segments, statistics=hs.norms())(EXPERTS, TOKENS)
    assert "GroupNorm" not in str(refusal.value)


def attention(p, graphs):
    nodes, ids = graphs["nodes"] @ p["a"], graphs["ids"]
    scores = jnp.where(ids[:, None] == ids[None, :], nodes @ nodes.T, -1e9)
    return read_out(p, graphs, jax.nn.softmax(scores) @ nodes)


def batch_norm(p, graphs):
    nodes = graphs["nodes"] @ p["a"]
    return read_out(p, graphs, nodes - nodes.mean(0))


def shifted(p, graphs):
    return read_out(p, graphs, jnp.roll(graphs["nodes"] @ p["a"], 1, 0))


@pytest.mark.parametrize("loss", [attention, batch_norm, shifted])
def test_rows_of_one_axis_that_meet_are_refused(loss):
    with pytest.raises(hs.Refusal):
        hs.grad(loss, segments=whose, statistics=hs.norms())(PARAMS, GRAPHS)


WRONG = {
    "holds the id -1, and there are 4 examples": lambda p, g: g["ids"] - 1,
    "holds the id 4, and there are 4 examples": lambda p, g: g["ids"] + 1,
    "has ids .3. for argument 1.'nodes'.": lambda p, g: g["ids"][:3],
    "is an integer array with the number": lambda p, g: g["ids"] * 1.0,
}


@pytest.mark.first(1)
@pytest.mark.parametrize("words", WRONG)
def test_ids_that_are_none_are_an_error(words):
    def ids(p, graphs):
        return whose(p, graphs) | {"nodes": WRONG[words](p, graphs)}

    with pytest.raises((ValueError, TypeError), match=words):
        hs.grad(attending, segments=ids, statistics=hs.norms())(PARAMS, GRAPHS)


def test_one_row_is_not_told_apart():
    f = hs.grad(of_nodes, segments=whose, statistics=hs.norms())
    with pytest.raises(ValueError, match=r"argument 1.'nodes'. has one row, which ids cannot"):
        f(PARAMS, GRAPHS | {"nodes": GRAPHS["nodes"][:1], "ids": IDS[:1]})


@pytest.mark.slow
def test_traced_ids_that_are_none_leave_no_statistic():
    def ids(p, graphs):
        return whose(p, graphs) | {"nodes": graphs["ids"] + 1}

    f = jax.jit(hs.grad(attending, segments=ids, statistics=STATISTICS))
    found = f(PARAMS, jax.tree.map(jnp.asarray, GRAPHS))[1]
    assert found["crossed"].all()
    assert jnp.isnan(found["norms"]).all()
