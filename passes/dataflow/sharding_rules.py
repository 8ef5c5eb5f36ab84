"""Shardy's op sharding rules as plain data: which dimensions share an index (a factor).

    dot_general : ([i, m], [m, k]) -> ([i, k]) {i=5, m=7, k=6} reduction={m}

Shardy knows this for every op that XLA can partition. The rules describe placement, so each use of
one is checked against the shapes at hand, and custom calls, whose authors write their own rules,
are allowed by list only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import convolution_numbers, integers
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, sdy

ATTRIBUTE = "sdy.sharding_rule"
# Since 0.12 Shardy permutes along what an update is shorter in, which says where elements are to be
# sent. Both keep their order, and where the update lands its numbers tell.
UPDATE = "stablehlo.dynamic_update_slice"
PADDINGS = ("edge_padding_low", "edge_padding_high", "interior_padding")
Factors = tuple[tuple[int, ...], ...]
# Of one factor: the dimension that it is of each operand, then of each result.
Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Rule:
    """Factors of operands' and results' dimensions, their sizes, and those reduced or blocked."""

    sizes: tuple[int, ...]
    operands: tuple[Factors, ...]
    results: tuple[Factors, ...]
    reduced: frozenset[int]
    blocked: frozenset[int]


def populate(module: Module) -> None:
    """Annotate every op with Shardy's rule, dropping rules that the module brought along."""
    strip(module)
    mlir.run_passes(module, "func.func(sdy-populate-op-sharding-rules)")


def strip(module: Module) -> None:
    """Drop every rule."""
    for op in mlir.all_operations(module):
        if ATTRIBUTE in op.attributes:
            del op.attributes[ATTRIBUTE]


def rule_of(op: Operation) -> Rule | None:
    """The rule of an op, or None where Shardy has none."""
    if ATTRIBUTE not in op.attributes:
        return None
    attribute = cast(Any, sdy).OpShardingRuleAttr(op.attributes[ATTRIBUTE])
    blocked = [*attribute.need_replication_factors]
    if op.name != UPDATE:
        blocked += attribute.permutation_factors
    operands = tuple(map(_factors, attribute.operand_mappings))
    results = tuple(map(_factors, attribute.result_mappings))
    moved = [factor for dim in _padded_dims(op) for factor in results[0][dim]]
    moved += [factor for dim in _window_dims(op) for factor in operands[1][dim]]
    return Rule(
        tuple(attribute.factor_sizes),
        operands,
        results,
        frozenset(attribute.reduction_factors),
        frozenset([*blocked, *attribute.blocked_propagation_factors, *moved]),
    )


def rule_along(op: Operation, along: Sequence[Axes]) -> Rule:
    """The rule by which an op takes these dimensions an index at a time, and blocks all others."""
    values = [*op.operands, *op.results]
    sizes = [_size(values, axes) for axes in along]
    rows: list[Factors] = []
    for number, value in enumerate(values):
        row: list[tuple[int, ...]] = []
        for dim, size in enumerate(mlir.shape(value)):
            own = next((k for k, axes in enumerate(along) if axes[number] == dim), len(sizes))
            row.append((own,))
            sizes += [size] if own == len(sizes) else []
        rows.append(tuple(row))
    count, blocked = len(op.operands), frozenset(range(len(along), len(sizes)))
    return Rule(tuple(sizes), tuple(rows[:count]), tuple(rows[count:]), frozenset(), blocked)


def _size(values: Sequence[Value], axes: Axes) -> int:
    pairs = zip(values, axes, strict=True)
    return next((mlir.shape(v)[axis] for v, axis in pairs if axis is not None), 1)


def _padded_dims(op: Operation) -> list[int]:
    """Dimensions along which a pad moves its operand: Shardy's rule omits those of equal size."""
    if op.name != "stablehlo.pad":
        return []
    paddings = zip(*(integers(op, name) for name in PADDINGS), strict=True)
    return [dim for dim, amounts in enumerate(paddings) if any(amounts)]


def _window_dims(op: Operation) -> Sequence[int]:
    """Dimensions along which a convolution's window slides over the image: Shardy's rule takes them
    for the image's where they are as long, as if each place met its own alone.
    """
    if op.name != "stablehlo.convolution":
        return []
    return convolution_numbers(op).kernel_spatial_dimensions


def _factors(mapping: Any) -> Factors:
    dimensions = cast(Any, sdy).TensorMappingAttr(mapping).dim_mappings
    return tuple(tuple(cast(Any, sdy).DimMappingAttr(d).factor_indices) for d in dimensions)
