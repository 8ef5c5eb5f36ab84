"""Methods that `families.py` compares: a gradient with second moment, or the mean clipped one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.comparison.jaxpr_surgery import NotFactorable, with_second_moment
from tools.models.problem import Problem

CHUNKS = (1, 4, 16, 64)
MAX_NORM = 1.0


class DoesNotApply(Exception):
    """A method cannot do a problem; the text says why."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a method. `predicted`: seconds beside the plain gradient, where the plan
    tells.
    """

    function: Callable[..., Any]
    label: str = ""
    predicted: float | None = None


# Of a problem, and the target to plan for (None: where JAX runs). Of several candidates the fastest
# counts.
Method = Callable[[Problem, str | None], Sequence[Candidate]]


def plain(problem: Problem, target: str | None) -> Sequence[Candidate]:
    del target
    return [Candidate(jax.grad(problem.loss))]


def surgery(problem: Problem, target: str | None) -> Sequence[Candidate]:
    return [Candidate(with_statistics(problem, hs.second_moment(), target=target))]


def with_statistics(problem: Problem, statistic: Any, **planning: Any) -> Any:
    return hs.grad(
        problem.loss, batch_argnums=problem.batch_argnums, statistics=statistic, **planning
    )


def by_vmap(problem: Problem, target: str | None) -> Sequence[Candidate]:
    del target
    own = each_gradient(problem)
    return [Candidate(lambda *args: _scaled(_sums(own(*args)), problem.batch))]


def each_gradient(problem: Problem) -> Callable[..., Any]:
    """The gradients of the examples as batches of one, stacked."""

    def one(params: Any, *example: jax.Array) -> Any:
        return jax.grad(problem.loss)(params, *(leaf[None] for leaf in example))

    return jax.vmap(one, (None, *[0] * len(problem.batch_argnums)))


def _sums(gradients: Any) -> tuple[Any, Any]:
    return jax.tree.map(_sum, gradients), jax.tree.map(_sum, jax.tree.map(jnp.square, gradients))


def _sum(leaf: jax.Array) -> jax.Array:
    return leaf.sum(0)


def _scaled(sums: Any, batch: int) -> Any:
    def scaled(leaf: jax.Array) -> jax.Array:
        return leaf / batch

    return jax.tree.map(scaled, sums)


def by_microbatches(problem: Problem, target: str | None) -> Sequence[Candidate]:
    del target
    return [
        Candidate(_scanned(problem, chunk), f"chunks of {chunk}")
        for chunk in divisors(problem.batch)
    ]


def divisors(batch: int) -> list[int]:
    return [chunk for chunk in CHUNKS if chunk < batch and batch % chunk == 0]


def _scanned(problem: Problem, chunk: int) -> Callable[..., Any]:
    """`vmap` over the examples of a chunk, and a scan over chunks that adds up."""
    own = each_gradient(problem)

    def function(params: Any, *batch: jax.Array) -> Any:
        def step(sums: Any, examples: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, _sums(own(params, *examples))), None

        zeros = jax.tree.map(jnp.zeros_like, (params, params))
        chunks = [leaf.reshape(-1, chunk, *leaf.shape[1:]) for leaf in batch]
        return _scaled(jax.lax.scan(step, zeros, chunks)[0], problem.batch)

    return function


def by_jaxpr_surgery(problem: Problem, target: str | None) -> Sequence[Candidate]:
    del target
    try:
        return [Candidate(with_second_moment(problem.loss, problem.structs, problem.batch))]
    except NotFactorable as reason:
        raise DoesNotApply(str(reason)) from None


def clipped_by_surgery(problem: Problem, target: str | None) -> Sequence[Candidate]:
    """The clipped mean without the gradient, as a private step uses it."""
    function = with_statistics(problem, hs.clipped_mean(MAX_NORM), target=target)
    return [Candidate(lambda *args: function(*args)[1])]


def clipped_by_jax_privacy(problem: Problem, target: str | None) -> Sequence[Candidate]:
    del target
    try:
        from jax_privacy import clipped_grad  # pyright: ignore
    except ImportError:
        raise DoesNotApply("jax-privacy is not installed") from None
    options: Any = {
        "l2_clip_norm": MAX_NORM,
        "batch_argnums": problem.batch_argnums,
        "normalize_by": problem.batch,
    }
    sizes = [*divisors(problem.batch), problem.batch]
    return [
        Candidate(clipped_grad(problem.loss, microbatch_size=m, **options), f"microbatch {m}")
        for m in sizes
    ]


METHODS: dict[str, Method] = {
    "plain": plain,
    "surgery": surgery,
    "jit(vmap)": by_vmap,
    "microbatched vmap": by_microbatches,
    "jaxpr surgery": by_jaxpr_surgery,
    "clipped: surgery": clipped_by_surgery,
    "clipped: jax-privacy": clipped_by_jax_privacy,
}
