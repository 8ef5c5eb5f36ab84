"""Square: phi of the operands in place of the operands, where phi(ab) = phi(a) phi(b)."""

from jax import Array

from hlo_surgery.passes.measures.measures import (
    MeanOf,
    Measure,
    TokenMeanOf,
    Variance,
    precise_phi,
)
from hlo_surgery.passes.strategies.gradient_costs import Predicted, Schedule, site_seconds
from hlo_surgery.passes.strategies.square_operands import (
    CENTRED,
    centred_variance,
    is_squarable,
    squared_mean,
)
from hlo_surgery.passes.strategies.strategy import Asked, Measures, Strategy, Task, each_measure
from hlo_surgery.passes.terms.steps import Known


def _applies(task: Task, measure: Measure) -> bool:
    """Whether each element of an example's gradient is one product, and the measure takes that."""
    sliced = task.sliced
    match measure:
        case TokenMeanOf():
            return is_squarable(sliced, per_token=True)
        case MeanOf():
            # The rows of a table that an example does not look up are zero without a product.
            looked_up = any(site.op.name == "stablehlo.scatter" for site in sliced.sites)
            factors = is_squarable(sliced) and measure.factors(sliced.value)
            return factors and (not looked_up or measure.vanishes_at_zero)
        case Variance():
            return is_squarable(sliced) and all(site.op.name in CENTRED for site in sliced.sites)
        case _:
            return False


def _predict(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """The contractions of all these measures, one after the other, of operands written before."""
    ops = [site.op.name for site in task.sliced.sites]
    seconds, held = 0.0, 0
    for measure in measures:
        times = [CENTRED[op] if isinstance(measure, Variance) else 1 for op in ops]
        each = list(zip(times, task.counts.sites, strict=True))
        seconds += sum(n * site_seconds(site, task.device, copies=3) for n, site in each)
        held = max(held, sum(n * site.read for n, site in each))
    return Predicted(seconds, held)


def _emit(asked: Asked, known: Known, measure: Measure) -> Array:
    if isinstance(measure, MeanOf | TokenMeanOf):
        return squared_mean(asked.task, known, precise_phi(measure.phi, asked.task.dtype))
    return centred_variance(asked.task, known)


SQUARE = Strategy(
    "square",
    _applies,
    _predict,
    each_measure(_emit),
    words="contracted again, phi of operands",
)
