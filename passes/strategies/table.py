"""The table of strategies, and what all that were chosen compute."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hlo_surgery.passes.emit.scopes import within
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import Norms
from hlo_surgery.passes.strategies.by_gradient.lift import LIFT
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.fused.fused import FUSED
from hlo_surgery.passes.strategies.ghost.ghost import GHOST
from hlo_surgery.passes.strategies.kronecker.kronecker import KRONECKER
from hlo_surgery.passes.strategies.lost_shares import nan_where_lost
from hlo_surgery.passes.strategies.project import PROJECT
from hlo_surgery.passes.strategies.segments import SEGMENTS
from hlo_surgery.passes.strategies.square.square import SQUARE
from hlo_surgery.passes.strategies.strategy import Asked, Chosen, Computed, Strategy
from hlo_surgery.passes.strategies.task import Known, Task

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
        asked = [Asked(chosen[i], _for_device(chosen[i], measures[i])) for i in numbers]
        wanted = [name for one in asked for m in one.measures for name in asked_by.get(m, ())]
        with within("strategy", [strategy.name]), within("statistic", wanted):
            made = strategy.emit(asked, known)
        for i, more in zip(numbers, made, strict=True):
            checked = more if strategy is SQUARE else _checked(chosen[i].task, more, known)
            computed[i] = _joined(computed[i], checked, chosen[i].reuse)
    return computed


def _checked(task: Task, computed: Computed, known: Known) -> Computed:
    """The same, NaN where shares may be lost; `square` sees to that by itself."""
    with within("output", [task.name]), within("strategy", ["range"]):
        return replace(computed, measured=nan_where_lost(task, computed.measured, known))


def _for_device(chosen: Chosen, measures: Sequence[Measure]) -> list[Measure]:
    """The same measures, computed as the device does it best."""
    once = chosen.task.device.joint_sums
    return [replace(m, one_reading=once) if isinstance(m, Norms) else m for m in measures]


def _joined(one: Computed, more: Computed, reuse: bool) -> Computed:
    gradient = more.gradient if one.gradient is None else one.gradient
    return Computed(one.measured | more.measured, gradient if reuse else None)
