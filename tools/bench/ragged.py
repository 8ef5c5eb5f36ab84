"""Norms and second moments where ids tell whose rows are: a batch of graphs, a mixture of experts.

python -m tools.bench.ragged [--rounds 9]

64 graphs of 32 to 96 nodes and thrice as many edges, all of width 64; 16 texts of 64 tokens of
width 64, each at one of 8 experts of 128. By hand: `vmap` over graphs, padded to the largest; text
after text. Temporaries are what XLA plans, seconds of CPU, medians of interleaved rounds.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_sum

import hlo_surgery as hs
from tools.bench.side_by_side import compile_all, median_seconds

GRAPHS, NODES, WIDTH, TEXTS, TOKENS, EXPERTS = 64, 96, 64, 16, 64, 8
STATISTICS = {"norms": hs.norms(), "squares": hs.second_moment()}
Arrays = dict[str, Any]


def heard(p: Arrays, graphs: Arrays) -> jax.Array:
    """Nodes after one round of messages."""
    nodes = jnp.tanh(graphs["nodes"] @ p["first"])
    ends = nodes[graphs["senders"]], nodes[graphs["receivers"]]
    messages = jnp.tanh(jnp.concatenate([*ends, graphs["edges"]], 1) @ p["message"])
    return nodes + segment_sum(messages, graphs["receivers"], len(nodes)) @ p["update"]


def graph_loss(p: Arrays, graphs: Arrays) -> jax.Array:
    pooled = segment_sum(heard(p, graphs), graphs["ids"], len(graphs["target"]))
    return jnp.mean((pooled @ p["out"] - graphs["target"]) ** 2)


def text_loss(p: Arrays, texts: jax.Array) -> jax.Array:
    tokens = texts.reshape(-1, WIDTH)
    gates = jax.nn.softmax(tokens @ p["router"])
    expert = hs.constant(jnp.argmax(gates, 1))
    order, sizes = jnp.argsort(expert), jnp.bincount(expert, length=EXPERTS)
    hidden = jax.nn.gelu(jax.lax.ragged_dot(tokens[order], p["up"], sizes.astype(jnp.int32)))
    made = jax.lax.ragged_dot(hidden, p["down"], sizes.astype(jnp.int32))
    return jnp.mean((made[jnp.argsort(order)] * jnp.max(gates, 1, keepdims=True)) ** 2)


def parameters(**shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(0)
    return {k: jnp.float32(rng.normal(size=s) / np.sqrt(s[-2])) for k, s in shapes.items()}


def padded_graphs() -> Arrays:
    """As many rows for each as the largest may have. Those that are none are of no graph, and what
    is no edge joins the last node, which is none then.
    """
    rng = np.random.default_rng(1)
    sizes = rng.integers(NODES // 3, NODES + 1, GRAPHS)[:, None]
    nodes, edges = np.arange(NODES) < sizes, np.arange(3 * NODES) < 3 * sizes
    ends = np.where(edges, rng.random((2, *edges.shape)) * sizes, NODES - 1).astype(np.int32)
    rows = {
        "nodes": (*nodes.shape, WIDTH),
        "edges": (*edges.shape, WIDTH),
        "target": (GRAPHS, 1, 1),
    }
    made = {k: rng.normal(size=shape).astype(np.float32) for k, shape in rows.items()}
    ids = {"ids": np.int32(~nodes), "of edges": np.int32(~edges)}
    return made | ids | {"senders": ends[0], "receivers": ends[1]}


def in_one(padded: Arrays) -> Arrays:
    """All graphs' rows, without any padding."""
    nodes, edges = padded["ids"] == 0, padded["of edges"] == 0
    starts = np.cumsum(nodes.sum(1)) - nodes.sum(1)
    ends = {k: (padded[k] + starts[:, None])[edges] for k in ("senders", "receivers")}
    rows = {"nodes": padded["nodes"][nodes], "edges": padded["edges"][edges]}
    ids = {"ids": np.nonzero(nodes)[0], "of edges": np.nonzero(edges)[0]}
    return rows | ends | ids | {"target": padded["target"][:, 0]}


def whose(p: Arrays, graphs: Arrays) -> Arrays:
    told = {"nodes": graphs["ids"], "edges": graphs["of edges"], "target": 0}
    return dict.fromkeys(graphs) | told


def measured(name: str, made: Any) -> Any:
    """Of all examples' gradients."""
    leaves = jax.tree.leaves(made)
    if name == "norms":
        return jnp.sqrt(sum(jnp.sum(g**2, range(1, g.ndim)) for g in leaves))
    return jax.tree.map(lambda g: jnp.mean(g**2, 0), made)


def ways(
    loss: Callable[..., Any], segments: Any, by_hand: Callable[..., Any]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """By its name each; `by_hand` has all examples' gradients, of parameters and what it takes."""
    yield "plain", lambda p, batch, _: jax.grad(loss)(p, batch)
    for name in STATISTICS:
        yield f"{name} by hand", lambda p, _, own, name=name: measured(name, by_hand(p, own))
    for strategy, name in product(("auto", "loop", "lift"), STATISTICS):
        asked: Any = {"statistics": STATISTICS[name], "strategy": strategy, "segments": segments}
        f = hs.grad(loss, **asked)
        yield f"{name} {strategy}", lambda p, batch, _, f=f: f(p, batch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    rounds, padded, w = parser.parse_args().rounds, padded_graphs(), WIDTH
    of_graphs = parameters(first=(w, w), message=(3 * w, w), update=(w, w), out=(w, 1))
    up, down = (EXPERTS, w, 2 * w), (EXPERTS, 2 * w, w)
    of_texts = parameters(router=(w, EXPERTS), up=up, down=down)
    texts = jnp.float32(np.random.default_rng(2).normal(size=(TEXTS, TOKENS, w)))

    def each_graph(p: Arrays, graphs: Arrays) -> Arrays:
        return jax.vmap(jax.grad(graph_loss), (None, 0))(p, graphs)

    def each_text(p: Arrays, texts: jax.Array) -> Arrays:
        return jax.lax.map(lambda text: jax.grad(text_loss)(p, text[None]), texts)

    given = {
        "graphs": (graph_loss, whose, each_graph, (of_graphs, in_one(padded), padded)),
        "texts": (text_loss, lambda *_: 0, each_text, (of_texts, texts, texts)),
    }
    for title, (loss, segments, by_hand, args) in given.items():
        args = jax.tree.map(jnp.asarray, args)
        compiled = compile_all(dict(ways(loss, segments, by_hand)), args)
        # What follows one that is large finds its memory cold.
        large = {name: own for name, own in compiled.items() if name.endswith("lift")}
        small = {name: own for name, own in compiled.items() if name not in large}
        timed = [median_seconds(each, args, rounds, time.process_time) for each in (small, large)]
        seconds = timed[0] | timed[1]
        for name, own in compiled.items():
            ratio, memory = seconds[name] / seconds["plain"], own.memory_analysis()
            print(
                f"{title:7} {name:15} {seconds[name] * 1e3:7.1f} ms {ratio:6.2f} x"
                f"{memory.temp_size_in_bytes / 1e6:8.1f} MB"
            )


if __name__ == "__main__":
    main()
