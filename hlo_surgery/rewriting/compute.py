"""Compute: given a gradient's slice and strategies, JAX code for each measure; traced by splice."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.strategies.centred_operands import (
    central_moment,
    centred_variance,
    squared_magnitude,
)
from hlo_surgery.passes.strategies.ghost_norms import ghost_gram, ghost_norms, token_norms
from hlo_surgery.passes.strategies.ghost_paths import may_cancel
from hlo_surgery.passes.strategies.lift_examples import lifted_gradients
from hlo_surgery.passes.strategies.segment_rows import segmented_mean
from hlo_surgery.passes.strategies.square_operands import squared_mean
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.looped import itself, looped, looped_together
from hlo_surgery.rewriting.real_examples import (
    count_of,
    flags_of,
    mean_of_examples,
    measured,
    without_padding,
)
from hlo_surgery.rewriting.wanted import (
    Computed,
    Known,
    Measured,
    Wanted,
    in_own_dtype,
    statistic_dtype,
    total_of,
)
from hlo_surgery.statistics.measures import (
    Gram,
    MeanOf,
    Measure,
    Norms,
    Phi,
    TokenMeanOf,
    TokenNorms,
    Variance,
    precise,
)


def compute_measures(
    wanted: Mapping[int, Wanted], groups: Sequence[Sequence[int]], known: Known, request: Request
) -> dict[int, Computed]:
    """Each gradient where it is reused (else None), and every measure; `groups` share loops."""
    loops: dict[int, Computed] = {}
    for group in groups:
        together = [wanted[i] for i in group]
        made = looped_together(together, known, [_taken(one, "loop") for one in together], request)
        loops |= zip(group, made, strict=True)
    return {i: _compute(one, loops.get(i), known, request) for i, one in wanted.items()}


def _compute(wanted: Wanted, loop: Computed | None, known: Known, request: Request) -> Computed:
    gradient, found = loop or (None, {})
    for strategy, compute in STRATEGIES.items():
        measures = _taken(wanted, strategy)
        if measures and strategy != "loop":
            total, made = compute(wanted, known, measures, request)
            found |= made
            gradient = total if gradient is None else gradient
    return gradient if wanted.choice.reuse else None, found


def _taken(wanted: Wanted, strategy: str) -> list[Measure]:
    return [measure for measure, taken in wanted.choice.strategies.items() if taken == strategy]


def _squared(
    wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request
) -> Computed:
    given = {key: known[key[0]] for key in wanted.function.inputs}
    count, real = count_of(known, request), flags_of(known, request)
    dtype, mean_loss = statistic_dtype(wanted.sliced.value), request.loss_reduction == "mean"
    phis = {m: precise_phi(m.phi, dtype) for m in measures if isinstance(m, MeanOf | TokenMeanOf)}
    mean = partial(squared_mean, wanted.sliced, given)
    found: Measured = {m: mean(phi, dtype, count, mean_loss, real) for m, phi in phis.items()}
    for measure in measures:
        if isinstance(measure, Variance):
            found[measure] = centred_variance(wanted.sliced, given, dtype, count, mean_loss, real)
    return None, found


def _segmented(
    wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request
) -> Computed:
    factor = count_of(known, request) if request.loss_reduction == "mean" else 1
    dtype = statistic_dtype(wanted.sliced.value)
    phis = {m: precise_phi(m.phi, dtype) for m in measures if isinstance(m, MeanOf)}
    mean = partial(segmented_mean, wanted.function, wanted.paths[0], known)
    of = partial(mean, size=request.size, factor=factor, real=flags_of(known, request))
    found: Measured = {m: of(phi) for m, phi in phis.items()}
    for measure in measures:
        if isinstance(measure, Variance):
            about = mean_of_examples(wanted.gradient, known, request)
            found[measure] = central_moment(
                of(squared_magnitude, about=about), of(itself, about=about)
            )
    return None, found


def _ghost(wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request) -> Computed:
    factor = count_of(known, request) if request.loss_reduction == "mean" else 1
    real = flags_of(known, request)
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
                    lax.cond(
                        jnp.all(reliable if real is None else reliable | ~real),
                        partial(itself, norms),
                        instantiated,
                    )
                    if cancels
                    else norms
                )
    return None, {m: _only(m, x, real) for m, x in found.items()}


def _only(measure: Measure, x: jax.Array, real: jax.Array | None) -> jax.Array:
    """Rows by example, zero for padding; of inner products the columns too."""
    rows = without_padding(x, real)
    return without_padding(rows.T, real).T if isinstance(measure, Gram) else rows


def _instantiated_norms(wanted: Wanted, known: Known, request: Request) -> jax.Array:
    """The norms where those from pairs of positions have cancelled."""
    norms = Norms()
    return STRATEGIES[wanted.choice.instantiating](wanted, known, [norms], request)[1][norms]


def _lifted(
    wanted: Wanted, known: Known, measures: Sequence[Measure], request: Request
) -> Computed:
    gradients = lifted_gradients(wanted.function, known, request.size)
    count, real = count_of(known, request), flags_of(known, request)
    plain = [m for m in measures if not isinstance(m, TokenMeanOf | TokenNorms)]
    found: Measured = {m: measured(m, gradients, real, count) for m in plain}
    # Divided before they are summed, since the sum of B gradients may overflow where their mean
    # does not.
    return total_of(wanted, jnp.sum(gradients / request.size, 0), request), in_own_dtype(
        wanted, found
    )


STRATEGIES: dict[str, Callable[[Wanted, Known, Sequence[Measure], Request], Computed]] = {
    "square": _squared,
    "ghost": _ghost,
    "segments": _segmented,
    "lift": _lifted,
    "loop": looped,
}


def precise_phi(phi: Phi, dtype: jnp.dtype) -> Phi:
    """Phi of gradients, computed in `dtype` and returned in it, or in the real dtype beside it."""
    return lambda gradients: precise(phi, gradients.astype(dtype))
