"""Planning: for each gradient output and measure, the strategy to take; and the counted cost of its sites."""

import math
from collections.abc import Mapping, Sequence

from hlo_surgery import mlir
from hlo_surgery.errors import Reason, Refusal
from hlo_surgery.measures import Gram, MeanOf, Measure, Norms, PerToken, TokenMeanOf, TokenNorms
from hlo_surgery.mlir import Operation, Value
from hlo_surgery.passes.element_types import dtype_of
from hlo_surgery.passes.ghost_paths import Path, is_cheaper, path_counts
from hlo_surgery.passes.gradient_slices import GradientSlice
from hlo_surgery.passes.slice_functions import SliceFunction
from hlo_surgery.passes.source_lines import source_line
from hlo_surgery.passes.square_operands import is_squarable
from hlo_surgery.plan import SitePlan

STRATEGIES = ("auto", "square", "ghost", "lift", "loop")
# Lifted gradients up to this size, or up to half of what the sites read, are cheaper than a loop over the examples.
LIFTED_BYTES = 4 << 20
# XLA on CPU leaves its fast path for a convolution inside a loop, by a factor of ten and more.
LIFTED_CONVOLUTION_BYTES = 1 << 30


def choose_strategies(
    sliced: GradientSlice,
    function: SliceFunction,
    paths: Sequence[Path],
    measures: Sequence[Measure],
    size: int,
    requested: str,
) -> dict[Measure, str]:
    """The strategy for each measure of one output. Raises Refusal for per-token proxies that do not apply."""
    return {measure: _strategy(sliced, function, paths, measure, size, requested) for measure in measures}


def _strategy(
    sliced: GradientSlice, function: SliceFunction, paths: Sequence[Path], measure: Measure, size: int, requested: str
) -> str:
    if isinstance(measure, PerToken):
        return _per_token_strategy(sliced, paths, measure)
    squares = isinstance(measure, MeanOf) and size > 1 and _factors(measure, sliced) and is_squarable(sliced)
    ghosts = size > 1 and _has_ghost(paths, measure, size)
    if size > 1:
        _refuse_strategy(measure, requested, {"square": squares, "ghost": ghosts})
    if requested in ("auto", "square") and squares:
        return "square"
    if requested == "ghost" and ghosts:
        return "ghost"
    if requested == "auto" and ghosts and (isinstance(measure, Gram) or is_cheaper(paths, sliced.value, size)):
        return "ghost"
    if isinstance(measure, Gram):
        return "lift" if function.liftable else "loop"
    return instantiating_strategy(sliced, function, size, requested)


def _per_token_strategy(sliced: GradientSlice, paths: Sequence[Path], measure: PerToken) -> str:
    """The proxies have one definition each, and so one strategy."""
    if isinstance(measure, TokenMeanOf) and is_squarable(sliced, per_token=True):
        return "square"
    if isinstance(measure, TokenNorms) and len(paths) == 1:
        return "ghost"
    op = sliced.sites[0].op if sliced.sites else mlir.defining_operation(sliced.value)
    name, where = ("func.return", "module") if op is None else (op.name, source_line(op))
    why = "a per-token proxy needs a single contraction over examples and positions, and this gradient is none"
    raise Refusal(Reason(why, name, where, "ask for second_moment or norms: they are exact everywhere"))


def _refuse_strategy(measure: Measure, requested: str, applies: Mapping[str, bool]) -> None:
    if not applies.get(requested, True):
        name = getattr(measure, "name", type(measure).__name__.lower())
        raise ValueError(f"strategy={requested!r} does not apply to {name} here; leave it at 'auto'")


def _has_ghost(paths: Sequence[Path], measure: Measure, size: int) -> bool:
    """Whether a measure can be had from pairs of positions."""
    if isinstance(measure, Gram):
        dense = len(paths) == 1 and paths[0].site.op.name == "stablehlo.dot_general"
        return dense and path_counts(paths[0], size)[0] == 1
    return bool(paths) and measure == Norms()


def instantiating_strategy(sliced: GradientSlice, function: SliceFunction, size: int, requested: str) -> str:
    """How to come by every example's own gradient."""
    if requested == "loop" or not function.liftable:
        return "loop"
    return "lift" if requested == "lift" or _is_worth_lifting(sliced, size) else "loop"


def _factors(measure: MeanOf, sliced: GradientSlice) -> bool:
    """Whether phi(ab) = phi(a) phi(b) for numbers of the gradient's kind."""
    return measure.complex_factorable if mlir.is_complex(sliced.value) else measure.factorable


def _is_worth_lifting(sliced: GradientSlice, size: int) -> bool:
    lifted = lifted_bytes(sliced, size)
    if any(site.op.name == "stablehlo.convolution" for site in sliced.sites):
        return lifted <= LIFTED_CONVOLUTION_BYTES
    return lifted <= max(LIFTED_BYTES, sum(_bytes(v) for v, _ in sliced.inputs) // 2)


def lifted_bytes(sliced: GradientSlice, size: int) -> int:
    """What the gradients of all examples take at once."""
    return size * _bytes(sliced.value)


def site_plan(op: Operation) -> SitePlan:
    """A site with its counted cost."""
    moved = sum(map(_bytes, [*op.operands, *op.results]))
    return SitePlan(op.name, source_line(op), _flops(op), moved)


def _bytes(value: Value) -> int:
    return math.prod(mlir.shape(value)) * dtype_of(value).itemsize


def _flops(op: Operation) -> int:
    """Two for each multiply-add of a contraction, one for each element summed by a reduction."""
    sizes = [math.prod(mlir.shape(v)) for v in [*op.operands, *op.results]]
    if op.name == "stablehlo.dot_general":
        lhs, rhs, result = sizes[:3]
        batching = mlir.stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"]).lhs_batching_dimensions
        batch = math.prod(mlir.shape(op.operands[0])[d] for d in batching)
        return 2 * math.isqrt(lhs * rhs * result * batch) if batch else 0
    if op.name == "stablehlo.convolution":
        lhs, _, result = sizes[:3]
        numbers = mlir.stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        window = mlir.shape(op.operands[1])
        features = window[numbers.kernel_input_feature_dimension]
        return 2 * result * features * math.prod(window[d] for d in numbers.kernel_spatial_dimensions)
    return max(sizes)
