"""Batches of graphs in plain JAX, as jraph has them, and each graph taken out of one."""

import jax
import jax.numpy as jnp
import numpy as np

E, F, G, H = 4, 3, 2, 5
NODES, EDGES = np.array([3, 0, 4, 2]), np.array([4, 0, 5, 1])
N, M = 12, 14


def owners(counts, total):
    """The graph of each row, -1 for padding."""
    own = np.repeat(np.arange(len(counts)), counts)
    return np.concatenate([own, np.full(total - len(own), -1)]).astype(np.int32)


def batch(seed=0):
    """Graphs of 3, 0, 4 and 2 nodes; padding edges lie between padding nodes."""
    r = np.random.default_rng(seed)
    first = np.cumsum(NODES) - NODES
    ends = [(first[g], NODES[g]) for g in range(E) for _ in range(EDGES[g])]
    pairs = np.array([[at + r.integers(n), at + r.integers(n)] for at, n in ends])
    pairs = np.concatenate([pairs, np.full((M - len(pairs), 2), N - 1)]).astype(np.int32)
    return {
        "nodes": r.normal(size=(N, F)),
        "edges": r.normal(size=(M, G)),
        "globals": r.normal(size=(E, 2)),
        "target": r.normal(size=E),
        "senders": pairs[:, 0],
        "receivers": pairs[:, 1],
        "node_ids": owners(NODES, N),
        "edge_ids": owners(EDGES, M),
    }


def params(seed=1):
    r = np.random.default_rng(seed)
    return {
        "edge": 0.3 * r.normal(size=(G + 2 * F + 2, H)),
        "node": 0.3 * r.normal(size=(F + H + 2, F)),
        "bias": 0.3 * r.normal(size=F),
        "global": 0.3 * r.normal(size=(F + H + 2, H)),
        "out": 0.3 * r.normal(size=H),
        "shift": 0.3 * r.normal(),
    }


def losses(p, b):
    """A GraphNetwork: edges, nodes and globals are updated, and each graph has a target. [E]"""
    nodes, edges, own = b["nodes"], b["edges"], b["globals"]
    ends = [nodes[b["senders"]], nodes[b["receivers"]]]
    edges = jnp.tanh(jnp.concatenate([edges, *ends, own[b["edge_ids"]]], 1) @ p["edge"])
    heard = jax.ops.segment_sum(edges, b["receivers"], len(nodes))
    joint = jnp.concatenate([nodes, heard, own[b["node_ids"]]], 1)
    nodes = jnp.tanh(joint @ p["node"] + p["bias"])
    pools = [
        jax.ops.segment_sum(nodes, b["node_ids"], len(own)),
        jax.ops.segment_sum(edges, b["edge_ids"], len(own)),
    ]
    found = jnp.tanh(jnp.concatenate([*pools, own], 1) @ p["global"])
    return (found @ p["out"] + p["shift"] - b["target"]) ** 2


def loss(p, b):
    return jnp.mean(losses(p, b))


def segments(p, b):
    own = {"nodes": b["node_ids"], "edges": b["edge_ids"], "globals": 0, "target": 0}
    return own | dict.fromkeys(["senders", "receivers", "node_ids", "edge_ids"])


def graph(b, g):
    """Graph g as a batch of its own."""
    nodes, edges = b["node_ids"] == g, b["edge_ids"] == g
    places = np.cumsum(nodes) - 1
    return {
        "nodes": b["nodes"][nodes],
        "edges": b["edges"][edges],
        "globals": b["globals"][[g]],
        "target": b["target"][[g]],
        "senders": places[b["senders"][edges]].astype(np.int32),
        "receivers": places[b["receivers"][edges]].astype(np.int32),
        "node_ids": np.zeros(nodes.sum(), np.int32),
        "edge_ids": np.zeros(edges.sum(), np.int32),
    }


def one_at_a_time(of_one, p, examples):
    """The gradients of losses of one example each, stacked, by a Python loop."""
    each = [jax.grad(lambda p, e=e: jnp.sum(of_one(p, e)))(p) for e in examples]
    return jax.device_get(jax.tree.map(lambda *x: np.stack(x), *each))
