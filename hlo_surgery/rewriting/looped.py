"""Looped: measures of gradients by loops over examples, one for gradients with common operands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.strategies.centred_operands import central_moment
from hlo_surgery.passes.strategies.loop_examples import looped_gradients
from hlo_surgery.passes.terms.slice_functions import jointly
from hlo_surgery.planning.choice import Choice
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.real_examples import (
    count_of,
    flags_of,
    mean_of_examples,
    without_padding,
)
from hlo_surgery.rewriting.wanted import Computed, Known, Wanted, in_own_dtype, total_of
from hlo_surgery.statistics.measures import (
    Gram,
    MeanOf,
    Measure,
    Norms,
    PerExampleGradients,
    Phi,
    SumOf,
    Variance,
    precise,
)


def loop_groups(wanted: Mapping[int, Wanted]) -> list[list[int]]:
    """Which gradients of loops share one: those with common operands, such as a layer's."""
    groups: list[tuple[set[Any], list[int]]] = []
    for i, one in wanted.items():
        if "loop" in one.choice.strategies.values():
            kind = (one.function.liftable, one.choice.written_out)
            operands: set[Any] = {(kind, *key) for key in one.function.inputs if key[1] is not None}
            touching = [group for group in groups if group[0] & operands]
            groups = [group for group in groups if group not in touching]
            groups.append(
                (
                    operands.union(*(g[0] for g in touching)),
                    [*(n for g in touching for n in g[1]), i],
                )
            )
    return [numbers for _, numbers in groups]


def with_common_chunks(
    wanted: Mapping[int, Wanted], groups: Sequence[Sequence[int]]
) -> dict[int, Wanted]:
    """The same, but a loop's gradients take as many examples at once as the largest may."""
    chunks = {i: min(wanted[j].choice.chunk for j in group) for group in groups for i in group}
    return {
        i: replace(one, choice=replace(one.choice, chunk=chunks[i])) if i in chunks else one
        for i, one in wanted.items()
    }


def looped_together(
    wanted: Sequence[Wanted], known: Known, measures: Sequence[Sequence[Measure]], request: Request
) -> list[Computed]:
    """Means and sums are accumulated over the examples; norms and gradients are stacked."""
    asked = [(i, measure) for i, of_one in enumerate(measures) for measure in of_one]
    sums: dict[tuple[int, Measure], Phi] = {
        (i, m): _summand(m, mean_of_examples(wanted[i].gradient, known, request))
        for i, m in asked
        if isinstance(m, MeanOf | SumOf | Variance)
    }
    rows: dict[tuple[int, Measure], Phi] = {
        (i, m): _row(m) for i, m in asked if isinstance(m, Norms | PerExampleGradients | Gram)
    }
    reused = [i for i, one in enumerate(wanted) if one.choice.reuse]
    real = flags_of(known, request)
    divided = [partial(_of_gradient, i, partial(_divided, request.size)) for i in reused]
    summands = [*divided, *(partial(_of_gradient, i, phi) for (i, _), phi in sums.items())]
    if real is not None:
        summands = [partial(_of_real, summand) for summand in summands]
    function = jointly([one.function for one in wanted])
    loop = partial(looped_gradients, function, known, request.size, **_steps(wanted[0].choice))
    by_row = [partial(_of_gradient, i, row) for (i, _), row in rows.items()]
    totals, stacks = loop(summands, by_row, () if real is None else (real,))
    stacks = [without_padding(stack, real) for stack in stacks]
    means = dict(zip(reused, totals, strict=False))
    found = dict(zip([*sums, *rows], [*totals[len(reused) :], *stacks], strict=True))
    return [
        (
            total_of(one, means[i], request) if i in means else None,
            in_own_dtype(
                one, {m: _of_looped(m, found[i, m], count_of(known, request)) for m in measures[i]}
            ),
        )
        for i, one in enumerate(wanted)
    ]


def looped(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    """One gradient in a loop of its own."""
    return looped_together([wanted], known, [measures], request)[0]


def _steps(choice: Choice) -> dict[str, Any]:
    return {"chunk": choice.chunk, "shards": choice.shards, "written_out": choice.written_out}


def _of_gradient(i: int, phi: Phi, gradients: Sequence[jax.Array]) -> jax.Array:
    return phi(gradients[i])


def _of_real(
    summand: Callable[[Sequence[jax.Array]], jax.Array],
    gradients: Sequence[jax.Array],
    real: jax.Array,
) -> jax.Array:
    found = summand(gradients)
    return jnp.where(real, found, jnp.zeros_like(found))


def _of_looped(measure: Measure, x: jax.Array, size: Any) -> jax.Array:
    """A measure from the sum over the examples, or from their rows."""
    if isinstance(measure, MeanOf):
        return x / size
    if isinstance(measure, Variance):
        return central_moment(jnp.real(x[0]) / size, x[1] / size)
    return measure.of(x) if isinstance(measure, Gram) else x


def _summand(measure: MeanOf | SumOf | Variance, mean: jax.Array) -> Phi:
    if isinstance(measure, Variance):
        return partial(_deviation, mean)
    return measure.function if isinstance(measure, SumOf) else lambda g: precise(measure.phi, g)


def _deviation(mean: jax.Array, gradient: jax.Array) -> jax.Array:
    """Its square and itself. The mean that was known before is rounded as the module rounds it."""
    off = widened(gradient) - mean
    return jnp.stack([off * jnp.conj(off), off])


def _row(measure: Norms | PerExampleGradients | Gram) -> Phi:
    return (lambda g: measure.of(g[None])[0]) if isinstance(measure, Norms) else itself


def _divided(size: int, gradient: jax.Array) -> jax.Array:
    return gradient / size


def itself(x: jax.Array) -> jax.Array:
    """The function that changes nothing."""
    return x


def weighted_by_example(
    wanted: Wanted, known: Known, weights: jax.Array, finite: jax.Array | None
) -> jax.Array:
    """The sum over b of w_b g_b of a mean loss, in at least float32, one example at a time."""
    size = weights.shape[0]

    def scaled(gradient: jax.Array, weight: jax.Array, keep: jax.Array) -> jax.Array:
        wide = widened(gradient)
        return jnp.where(keep, wide * weight.astype(wide.dtype), jnp.zeros_like(wide))

    keep = jnp.ones(size, bool) if finite is None else finite
    loop = partial(looped_gradients, wanted.function, known, size, **_steps(wanted.choice))
    totals, _ = loop([scaled], [], (weights, keep))
    return totals[0]


def along_by_example(wanted: Wanted, known: Known, direction: jax.Array, size: int) -> jax.Array:
    """Inner products of each example's own gradient with a direction, [B], at least float32."""

    def product(gradient: jax.Array) -> jax.Array:
        return jnp.sum(jnp.real(widened(gradient) * widened(direction).conj()))

    _, rows = looped_gradients(wanted.function, known, size, [], [product], **_steps(wanted.choice))
    return rows[0]
