"""Planning: for each gradient and measure, the exact strategy predicted to be fastest in budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.strategies.centred_operands import CENTRED
from hlo_surgery.passes.strategies.ghost_paths import Path, is_cheaper, path_counts
from hlo_surgery.passes.strategies.segment_rows import has_segments
from hlo_surgery.passes.strategies.square_operands import is_squarable
from hlo_surgery.passes.terms.gradient_slices import GradientSlice
from hlo_surgery.passes.terms.scatter_onto import scatters_onto
from hlo_surgery.passes.terms.slice_functions import SliceFunction
from hlo_surgery.planning.options import PlanningChoices
from hlo_surgery.planning.plan import Predicted
from hlo_surgery.planning.predictions import (
    Counts,
    counts_of,
    plain_seconds,
    predict_ghost,
    predict_lift,
    predict_loop,
    predict_segments,
    predict_square,
)
from hlo_surgery.statistics.factorable import vanishes_at_zero
from hlo_surgery.statistics.measures import (
    Gram,
    MeanOf,
    Measure,
    Norms,
    PerToken,
    TokenMeanOf,
    TokenNorms,
    Variance,
)

# Temporaries up to this size, or up to half of what the sites read, go unnoticed beside those of
# the gradient itself.
UNNOTICED_BYTES = 4 << 20


@dataclass(frozen=True)
class Choice:
    """The strategy for each measure of one gradient, and what was predicted of all that apply.

    `instantiating`: how to come by each example's own gradient, "lift" or "loop", where that is
    needed; `chunk`: how many at a time in a loop; `shards`: over how many devices; `written_out`:
    step after step, without a loop. `reuse`: the gradient is taken from there as well.
    """

    strategies: Mapping[Measure, str]
    instantiating: str
    chunk: int
    shards: int
    written_out: bool
    reuse: bool
    predicted: Mapping[str, Predicted]


@dataclass(frozen=True)
class Planned:
    """One gradient with all that a choice rests on. `precise`: nothing on the way to it is rounded
    below float32.
    """

    sliced: GradientSlice
    function: SliceFunction
    paths: Sequence[Path]
    size: int
    precise: bool
    options: PlanningChoices

    @cached_property
    def counts(self) -> Counts:
        """What its sites compute and move."""
        return counts_of(self.sliced, self.size)

    @cached_property
    def shards(self) -> int:
        """Over how many devices a loop goes; what cannot be lifted goes one by one through all."""
        return (self.options.shards or 1) if self.function.liftable else 1

    @cached_property
    def written_out(self) -> bool:
        """Whether the steps of a loop are few enough to be written out, and what XLA then fuses."""
        device, steps = self.options.device, -(-self.size // self.shards)
        scattered = len(scatters_onto(self.sliced.steps))
        contractions = [site.op.name for site in self.sliced.sites].count("stablehlo.dot_general")
        alone = contractions == 1 and len(self.sliced.sites) == 1 + scattered
        return (
            alone
            and steps <= device.written_out
            and (scattered > 0 or self.counts.gradient <= device.cache)
        )


def choose(planned: Planned, measures: Sequence[Measure]) -> Choice:
    """The strategy for each measure. Raises Refusal for per-token proxies that do not apply."""
    chunk = _chunk(planned)
    predicted = _predicted(planned, chunk)
    instantiating = _instantiating(planned, predicted)
    strategies = {
        measure: _strategy(planned, measure, predicted, instantiating) for measure in measures
    }
    asked = {"lift", "loop"}.union(
        *(_applying(planned, measure, predicted) for measure in measures)
    )
    predicted |= _squares(
        planned, [m for m in measures if "square" in _applying(planned, m, predicted)]
    )
    predicted = {name: cost for name, cost in predicted.items() if name in asked}
    reuse = _reuses(planned, chunk, set(strategies.values()))
    return Choice(
        strategies, instantiating, chunk, planned.shards, planned.written_out, reuse, predicted
    )


def _predicted(planned: Planned, chunk: int) -> dict[str, Predicted]:
    """The strategies that apply to this gradient, for one measure or another."""
    device, size, counts = planned.options.device, planned.size, planned.counts
    predicted: dict[str, Predicted] = {}
    if size > 1 and is_squarable(planned.sliced):
        predicted["square"] = predict_square(counts, device, [1] * len(counts.sites))
    if size > 1 and planned.paths:
        predicted["ghost"] = predict_ghost(counts, planned.paths, device)
    if size > 1 and has_segments(planned.paths):
        predicted["segments"] = predict_segments(counts, device)
    if planned.function.liftable:
        predicted["lift"] = predict_lift(counts, device)
    return predicted | {"loop": predict_loop(counts, device, chunk, planned.written_out)}


def _squares(planned: Planned, measures: Sequence[Measure]) -> dict[str, Predicted]:
    """The contractions of all these measures, one after the other."""
    ops = [site.op.name for site in planned.sliced.sites]
    times = [[CENTRED[op] if isinstance(m, Variance) else 1 for op in ops] for m in measures]
    each = [predict_square(planned.counts, planned.options.device, n) for n in times]
    if not each:
        return {}
    return {"square": Predicted(sum(p.seconds for p in each), max(p.temporaries for p in each))}


def _budget(planned: Planned) -> int:
    given = planned.options.memory_budget
    return given or max(UNNOTICED_BYTES, planned.counts.read // 2)


def _chunk(planned: Planned) -> int:
    """As many examples at once as budget and device allow, on each device with examples."""
    if planned.written_out or not planned.function.liftable:
        return 1
    own = max(planned.counts.gradient, 1)
    return max(1, min(_budget(planned) // own, planned.options.device.widest_chunk, planned.size))


def _instantiating(planned: Planned, predicted: Mapping[str, Predicted]) -> str:
    """The faster way to examples' gradients; lifting only in budget, or if loops take no less."""
    requested, budget = planned.options.strategy, _budget(planned)
    if "lift" not in predicted or (requested == "loop" and planned.size > 1):
        return "loop"
    if planned.size == 1:
        return "lift"
    lift, loop = predicted["lift"], predicted["loop"]
    fits = lift.temporaries <= max(budget, loop.temporaries)
    return "lift" if requested == "lift" or (fits and lift.seconds <= loop.seconds) else "loop"


def _strategy(
    planned: Planned, measure: Measure, predicted: Mapping[str, Predicted], instantiating: str
) -> str:
    if isinstance(measure, PerToken):
        return _per_token_strategy(planned, measure)
    requested, applies = planned.options.strategy, _applying(planned, measure, predicted)
    if planned.size > 1:
        _refuse_strategy(measure, requested, applies)
    for shortcut in ("square", "segments", "ghost"):
        if shortcut in applies and (
            requested == shortcut or (requested == "auto" and applies[shortcut])
        ):
            return shortcut
    if isinstance(measure, Gram):
        return "lift" if planned.function.liftable else "loop"
    return instantiating


def _applying(
    planned: Planned, measure: Measure, predicted: Mapping[str, Predicted]
) -> dict[str, bool]:
    """The strategies that need no example's own gradient, and whether each is worth it."""
    applies: dict[str, bool] = {}
    if isinstance(measure, PerToken):
        return applies
    if "square" in predicted and _factors(measure, planned.sliced):
        applies["square"] = True
    if "segments" in predicted and isinstance(measure, MeanOf | Variance):
        applies["segments"] = predicted["segments"].seconds <= predicted["loop"].seconds
    if "ghost" in predicted and _has_ghost(planned, measure):
        applies["ghost"] = isinstance(measure, Gram) or is_cheaper(
            planned.paths, planned.sliced.value, planned.size
        )
    return applies


def _per_token_strategy(planned: Planned, measure: PerToken) -> str:
    """The proxies have one definition each, and so one strategy."""
    sliced = planned.sliced
    if isinstance(measure, TokenMeanOf) and is_squarable(sliced, per_token=True):
        return "square"
    if isinstance(measure, TokenNorms) and len(planned.paths) == 1:
        return "ghost"
    op = sliced.sites[0].op if sliced.sites else mlir.defining_operation(sliced.value)
    name, where = ("func.return", "module") if op is None else (op.name, source_line(op))
    why = (
        "a per-token proxy needs a single contraction over examples and positions, and this "
        "gradient is none"
    )
    raise Refusal(
        Reason(why, name, where, "ask for second_moment or norms: they are exact everywhere")
    )


def _refuse_strategy(measure: Measure, requested: str, applies: Mapping[str, bool]) -> None:
    if requested in ("square", "ghost", "segments") and requested not in applies:
        name = getattr(measure, "name", type(measure).__name__.lower())
        raise ValueError(
            f"strategy={requested!r} does not apply to {name} here; leave it at 'auto'"
        )


def _has_ghost(planned: Planned, measure: Measure) -> bool:
    """Whether a measure can be had from pairs of positions."""
    if isinstance(measure, Gram):
        (path, *more) = planned.paths
        dense = not more and path.site.op.name == "stablehlo.dot_general"
        return dense and path_counts(path, planned.size)[0] == 1
    return measure == Norms()


def _factors(measure: Measure, sliced: GradientSlice) -> bool:
    """Whether phi(ab) = phi(a) phi(b) for the gradient's kind, or factors are centred instead."""
    if not isinstance(measure, MeanOf):
        return isinstance(measure, Variance) and all(
            site.op.name in CENTRED for site in sliced.sites
        )
    # The rows of a table that an example does not look up are zero without a product.
    looked_up = any(site.op.name == "stablehlo.scatter" for site in sliced.sites)
    if looked_up and measure.factorable and not vanishes_at_zero(measure.phi):
        return False
    return measure.complex_factorable if mlir.is_complex(sliced.value) else measure.factorable


def _reuses(planned: Planned, chunk: int, taken: set[str]) -> bool:
    """Whether the gradient is taken from the tensors that hold each example's own.

    It is not where that would round each example's before they are summed.
    """
    wanted, device = planned.options.reuse_gradient, planned.options.device
    possible = bool(planned.sliced.sites) and bool(taken & {"lift", "loop"}) and planned.precise
    if not possible or wanted is not None or "loop" not in taken or planned.written_out:
        return possible and wanted is not False
    counts = planned.counts
    steps = -(-counts.size // chunk)
    accumulated = 2 * steps * counts.gradient
    return device.moving_seconds(accumulated, 3 * counts.gradient) <= plain_seconds(counts, device)
