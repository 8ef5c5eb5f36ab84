"""The two problems of the GPU tables, and what is computed of each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.methods import by_vmap, only
from tools.models.families import mlp, scanned_lm
from tools.models.problem import Problem

STATISTICS: dict[str, Any] = {
    "second_moment": hs.second_moment(),
    "norms": hs.norms(),
    "clipped_mean": hs.clipped_mean(1.0),
}
Function = Callable[..., Any]


def scores(params: Any, tokens: jax.Array) -> jax.Array:
    """As `scanned_lm.scores`, but layers are computed again in the backward pass."""
    x = params["embedding"][tokens[:, :-1]]
    x, _ = jax.lax.scan(jax.checkpoint(scanned_lm.layer), x, params["layers"])
    return jax.nn.log_softmax((x @ params["head"]).astype(jnp.float32))


def loss(params: Any, tokens: jax.Array) -> jax.Array:
    """The cross-entropy of the next token, summed over positions."""
    found = jnp.take_along_axis(scores(params, tokens), tokens[:, 1:, None], -1)
    return -jnp.mean(jnp.sum(found, (1, 2)))


def language_model(batch: int, width: int, depth: int, length: int, vocabulary: int) -> Problem:
    """In bfloat16, with layers scanned and rematerialised."""
    made = scanned_lm.problem(batch, width, depth, length, vocabulary)

    def make() -> tuple[Any, ...]:
        params, tokens = made.make()
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), tokens

    return Problem("decoder lm", loss, make, batch, width, depth, f"length {length}, bf16")


def problems(small: bool) -> list[Problem]:
    """A tenth of the size where `small`."""
    if small:
        return [language_model(8, 32, 2, 32, 128), mlp.problem_without_biases(32, 64, 3)]
    return [language_model(16, 512, 4, 512, 8192), mlp.problem_without_biases(1024, 1024, 6)]


def functions(
    problem: Problem, target: str | None, shards: int | None = None
) -> dict[str, Function]:
    """Each returns the plain gradient too, but for clipped means, which a private step does
    without. Kernels are for one device.
    """
    made: dict[str, Function] = {
        "plain": jax.grad(problem.loss),
        "vmap squares": by_vmap(problem),
    }
    given: Any = {"batch_argnums": problem.batch_argnums, "target": target, "shards": shards}
    for by, strategy in {"": "auto", **({" by kernel": "fused"} if shards is None else {})}.items():
        for name, statistic in STATISTICS.items():
            how: Any = {**given, "strategy": strategy}
            function = hs.grad(problem.loss, statistics=statistic, **how)
            made[name + by] = only(function) if name == "clipped_mean" else function
    return made
