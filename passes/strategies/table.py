"""The table of strategies, and what all that were chosen compute."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hlo_surgery.passes.emit.scopes import within
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.strategies.by_gradient.lift import LIFT
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.einsums.ghost import GHOST
from hlo_surgery.passes.strategies.einsums.kronecker import KRONECKER
from hlo_surgery.passes.strategies.einsums.project import PROJECT
from hlo_surgery.passes.strategies.einsums.segments import SEGMENTS
from hlo_surgery.passes.strategies.fused.fused import FUSED
from hlo_surgery.passes.strategies.lost_shares import nan_where_lost
from hlo_surgery.passes.strategies.square.square import SQUARE
from hlo_surgery.passes.strategies.strategy import Asked, Chosen, Computed, Strategy
from hlo_surgery.passes.strategies.task import Known

# Of those that apply and pay, the first is taken; the last two make any measure that gradients
# define, from each example's own.
SHORTCUTS: tuple[Strategy, ...] = (
    SQUARE,
    SEGMENTS,
    GHOST,
    PROJECT,
    KRONECKER,
    FUSED,
)
STRATEGIES: tuple[Strategy, ...] = (*SHORTCUTS, LIFT, LOOP)


def compute_measures(
    chosen: Mapping[int, Chosen], known: Known, asked_by: Mapping[Measure, Sequence[str]]
) -> dict[int, Computed]:
    """Every measure of each gradient, and the gradient where it is reused. `asked_by`: which
    statistics are made of a measure.
    """
    computed = {i: Computed({}) for i in chosen}
    for strategy in STRATEGIES:
        measures = {i: one.made_by(strategy) for i, one in chosen.items()}
        numbers = [i for i, asked in measures.items() if asked]
        asked = [Asked(chosen[i], measures[i]) for i in numbers]
        wanted = [name for one in asked for m in one.measures for name in asked_by.get(m, ())]
        with within("strategy", [strategy.name]), within("statistic", wanted):
            made = strategy.emit(asked, known)
            made = [_checked(*pair, known) for pair in zip(asked, made, strict=True)]
        for i, more in zip(numbers, made, strict=True):
            computed[i] = _joined(computed[i], more, chosen[i].reuse)
    return computed


def _checked(asked: Asked, computed: Computed, known: Known) -> Computed:
    """The same, NaN where shares may be lost."""
    with within("output", [asked.task.name]):
        return replace(computed, measured=nan_where_lost(asked.task, computed.measured, known))


def _joined(one: Computed, more: Computed, reuse: bool) -> Computed:
    gradient = more.gradient if one.gradient is None else one.gradient
    return Computed(one.measured | more.measured, gradient if reuse else None)
