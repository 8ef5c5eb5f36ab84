"""Compute: given a gradient's slice and the strategy for each measure, JAX code that makes them; traced by splice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery import mlir
from hlo_surgery.measures import (
    Gram,
    MeanOf,
    Measure,
    Norms,
    PerExampleGradients,
    Phi,
    SumOf,
    TokenMeanOf,
    TokenNorms,
    precise,
)
from hlo_surgery.mlir import Value
from hlo_surgery.passes.element_types import dtype_of, wide_dtype, widened
from hlo_surgery.passes.ghost_norms import ghost_gram, ghost_norms, token_norms
from hlo_surgery.passes.ghost_paths import Path, may_cancel
from hlo_surgery.passes.gradient_slices import GradientSlice
from hlo_surgery.passes.lift_examples import lifted_gradients
from hlo_surgery.passes.loop_examples import looped_gradients
from hlo_surgery.passes.segment_rows import segmented_mean
from hlo_surgery.passes.slice_functions import SliceFunction
from hlo_surgery.passes.square_operands import squared_mean
from hlo_surgery.passes.wide_slices import narrowest
from hlo_surgery.planning import Choice
from hlo_surgery.request import Request


@dataclass(frozen=True)
class Wanted:
    """One gradient: its slice, the function of one example, its ghost paths, and how each measure is computed."""

    sliced: GradientSlice
    function: SliceFunction
    paths: Sequence[Path]
    choice: Choice


Known = Mapping[Value, jax.Array]
Measured = dict[Measure, jax.Array]
Computed = tuple[jax.Array | None, Measured]


def is_precise(sliced: GradientSlice) -> bool:
    """Whether nothing between the examples and the gradient is rounded to less than float32."""
    taken = [value for value, _ in sliced.inputs if mlir.is_inexact(value)]
    return makes_float32(sliced) and all(map(mlir.is_at_least_float32, [sliced.value, *taken]))


def makes_float32(sliced: GradientSlice) -> bool:
    """Whether no op on the way to the gradient rounds to less than float32."""
    return all(mlir.is_at_least_float32(result) for step in sliced.steps for result in step.op.results)


def statistic_dtype(gradient: Value) -> jnp.dtype:
    """Squares and sums of low-precision gradients accumulate in float32."""
    return wide_dtype(dtype_of(gradient))


def compute_measures(wanted: Wanted, known: Known, request: Request) -> Computed:
    """The gradient where it is reused (else None), and every measure."""
    found: Measured = {}
    gradient: jax.Array | None = None
    for strategy, compute in STRATEGIES.items():
        measures = [measure for measure, taken in wanted.choice.strategies.items() if taken == strategy]
        if measures:
            total, made = compute(wanted, known, measures, request)
            found |= made
            gradient = total if gradient is None else gradient
    return gradient if wanted.choice.reuse else None, found


def _squared(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    given = {key: known[key[0]] for key in wanted.function.inputs}
    dtype, mean_loss = statistic_dtype(wanted.sliced.value), request.loss_reduction == "mean"
    phis = {m: precise_phi(m.phi, dtype) for m in measures if isinstance(m, MeanOf | TokenMeanOf)}
    return None, {m: squared_mean(wanted.sliced, given, phi, dtype, request.size, mean_loss) for m, phi in phis.items()}


def _segmented(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    factor = request.size if request.loss_reduction == "mean" else 1
    dtype = statistic_dtype(wanted.sliced.value)
    phis = {m: precise_phi(m.phi, dtype) for m in measures if isinstance(m, MeanOf)}
    mean = partial(segmented_mean, wanted.function, wanted.paths[0], known)
    return None, {m: mean(phi, request.size, factor) for m, phi in phis.items()}


def _ghost(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    factor = request.size if request.loss_reduction == "mean" else 1
    arguments = (known, request.size, factor)
    found: Measured = {}
    for measure in measures:
        match measure:
            case Gram():
                found[measure] = ghost_gram(wanted.function, wanted.paths[0], *arguments)
            case TokenNorms():
                found[measure] = token_norms(wanted.function, wanted.paths[0], *arguments)
            case _:
                norms, reliable = ghost_norms(wanted.function, wanted.paths, *arguments)
                instantiated = partial(_instantiated_norms, wanted, known, request)
                cancels = may_cancel(wanted.paths, request.size)
                found[measure] = (
                    lax.cond(jnp.all(reliable), partial(_itself, norms), instantiated) if cancels else norms
                )
    return None, found


def _instantiated_norms(wanted: Wanted, known: Known, request: Request) -> jax.Array:
    """The norms where those from pairs of positions have cancelled."""
    norms = Norms()
    return STRATEGIES[wanted.choice.instantiating](wanted, known, [norms], request)[1][norms]


def _lifted(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    gradients = lifted_gradients(wanted.function, known, request.size)
    found: Measured = {m: m.of(gradients) for m in measures if not isinstance(m, TokenMeanOf | TokenNorms)}
    # Divided before they are summed, since the sum of B gradients may overflow where their mean does not.
    return _total(wanted, jnp.sum(gradients / request.size, 0), request), _in_own_dtype(wanted, found)


def _looped(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    """Means and sums are accumulated over the examples; norms and the gradients themselves are stacked."""
    sums: dict[Measure, Phi] = {m: _summand(m) for m in measures if isinstance(m, MeanOf | SumOf)}
    rows: dict[Measure, Phi] = {m: _row(m) for m in measures if isinstance(m, Norms | PerExampleGradients | Gram)}
    functions = [partial(_divided, request.size), *sums.values()]
    totals, stacks = _loop(wanted)(known, request.size, functions, list(rows.values()))
    found = dict(zip([*sums, *rows], [*totals[1:], *stacks], strict=True))
    measured = {m: _of_looped(m, x, request.size) for m, x in found.items()}
    return _total(wanted, totals[0], request), _in_own_dtype(wanted, measured)


def _loop(wanted: Wanted) -> Callable[..., tuple[list[jax.Array], list[jax.Array]]]:
    """`looped_gradients` of this gradient, as it was planned."""
    return partial(looped_gradients, wanted.function, chunk=wanted.choice.chunk, shards=wanted.choice.shards)


def _of_looped(measure: Measure, x: jax.Array, size: int) -> jax.Array:
    """A measure from the sum over the examples, or from their rows."""
    if isinstance(measure, MeanOf):
        return x / size
    return measure.of(x) if isinstance(measure, Gram) else x


def _summand(measure: MeanOf | SumOf) -> Phi:
    return measure.function if isinstance(measure, SumOf) else lambda g: precise(measure.phi, g)


def _row(measure: Norms | PerExampleGradients | Gram) -> Phi:
    return (lambda g: measure.of(g[None])[0]) if isinstance(measure, Norms) else _itself


def _divided(size: int, gradient: jax.Array) -> jax.Array:
    return gradient / size


def _itself(gradient: jax.Array) -> jax.Array:
    return gradient


STRATEGIES: dict[str, Callable[[Wanted, Known, Sequence[Measure], Request], Computed]] = {
    "square": _squared,
    "ghost": _ghost,
    "segments": _segmented,
    "lift": _lifted,
    "loop": _looped,
}


def weighted_by_example(wanted: Wanted, known: Known, weights: jax.Array, finite: jax.Array | None) -> jax.Array:
    """The sum over b of w_b g_b of a mean loss, accumulated in at least float32 from each example's own gradient."""
    size = weights.shape[0]

    def scaled(gradient: jax.Array, weight: jax.Array, keep: jax.Array) -> jax.Array:
        wide = widened(gradient)
        return jnp.where(keep, wide * weight.astype(wide.dtype), jnp.zeros_like(wide))

    keep = jnp.ones(size, bool) if finite is None else finite
    totals, _ = _loop(wanted)(known, size, [scaled], [], (weights, keep))
    return totals[0]


def precise_phi(phi: Phi, dtype: jnp.dtype) -> Phi:
    """Phi of gradients, computed in `dtype` and returned in it, or in the real dtype beside it."""
    return lambda gradients: precise(phi, gradients.astype(dtype))


def _total(wanted: Wanted, mean: jax.Array, request: Request) -> jax.Array:
    """The minibatch gradient from the mean of the examples' gradients, rounded as the module rounds it."""
    total = mean if request.loss_reduction == "mean" else mean * request.size
    if wanted.function.wide:
        total = total.astype(narrowest(wanted.sliced))
    return total.astype(dtype_of(wanted.sliced.value))


def _in_own_dtype(wanted: Wanted, found: Measured) -> Measured:
    """Gradients themselves are returned as the module would."""
    dtype = dtype_of(wanted.sliced.value)
    return {m: x.astype(dtype) if isinstance(m, PerExampleGradients) else x for m, x in found.items()}
