"""Shardy's op sharding rules as plain data: which dimensions share an index (a factor).

    dot_general : ([i, m], [m, k]) -> ([i, k]) {i=5, m=7, k=6} reduction={m}

Shardy knows this for every op that XLA can partition. The rules describe placement, so each use of
one is checked against the shapes at hand, and custom calls, whose authors write their own rules,
are allowed by list only.

Declared calls: the axes along which a custom call takes examples one by one, as its user says.

    custom_call @kernel(%q : 4x8, %w : 8) : 4x8 {hlo_surgery.example_axes = [[0, -1, 0]]}
        =>   ([b, _], [_]) -> ([b, _])

Each list is one factor: its axis in every operand and result, -1 where it has none. What is said is
not proved: soundness.md says what is trusted.

Fused attention: cuDNN's calls, which take the batch, their dimension 0, an index at a time.

    custom_call @__cudnn$fmhaSoftmaxBackward(%q, %k, %v, %stats, %do, %o)
        =>   ([b, ...], [b, ...], ...) -> ([b, ...], [b, ...], [b, ...], [_])

Such a call says of itself by which products it is defined: attention, and its derivatives, with
dimension 0 a batch dimension of each. Softmax and masks are taken along the keys. So
`jax.nn.dot_product_attention(implementation="cudnn")` lowers. A bias of one for all is blocked, and
with it its gradient, which is summed over the batch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import source_line
from hlo_surgery.passes.ir.mlir import Module, Operation, Shape, Value, Values, ir, sdy
from hlo_surgery.passes.ir.traits import convolution_numbers

ATTRIBUTE = "sdy.sharding_rule"
# Since 0.12 Shardy permutes along what an update is shorter in, which says where elements are to be
# sent. Both keep their order, and where the update lands its numbers tell.
UPDATE = "stablehlo.dynamic_update_slice"
Factors = tuple[tuple[int, ...], ...]
# Of one factor: the dimension that it is of each operand, then of each result.
Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Rule:
    """Factors of operands' and results' dimensions, their sizes, and those reduced or blocked."""

    sizes: Shape
    operands: tuple[Factors, ...]
    results: tuple[Factors, ...]
    reduced: frozenset[int]
    blocked: frozenset[int]


def populate(module: Module) -> None:
    """Annotate every op that has none with Shardy's rule. Rules that a module brought along are no
    rules: normalisation has dropped them.
    """
    mlir.run_passes(module, "func.func(sdy-populate-op-sharding-rules)")


def strip(module: Module) -> None:
    """Drop every rule."""
    for op in mlir.all_operations(module):
        mlir.drop_attributes(op, [ATTRIBUTE])


def rule_of(op: Operation) -> Rule | None:
    """The rule of an op, or None where Shardy has none."""
    if ATTRIBUTE not in op.attributes:
        return None
    attribute = sdy.OpShardingRuleAttr(op.attributes[ATTRIBUTE])
    blocked = [*attribute.need_replication_factors]
    if op.name != UPDATE:
        blocked += attribute.permutation_factors
    operands = tuple(map(_factors, attribute.operand_mappings))
    results = tuple(map(_factors, attribute.result_mappings))
    moved = [factor for dim in _window_dims(op) for factor in operands[1][dim]]
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


def _size(values: Values, axes: Axes) -> int:
    pairs = zip(values, axes, strict=True)
    return next((mlir.shape(v)[axis] for v, axis in pairs if axis is not None), 1)


def _window_dims(op: Operation) -> Sequence[int]:
    """Dimensions along which a convolution's window slides over the image: Shardy's rule takes them
    for the image's where they are as long, as if each place met its own alone.
    """
    if op.name != "stablehlo.convolution":
        return []
    return convolution_numbers(op).kernel_spatial_dimensions


def _factors(mapping: Any) -> Factors:
    dimensions = sdy.TensorMappingAttr(mapping).dim_mappings
    return tuple(tuple(sdy.DimMappingAttr(d).factor_indices) for d in dimensions)


DECLARED = "hlo_surgery.example_axes"
CUSTOM_CALL = "stablehlo.custom_call"
NONE = -1


@dataclass(frozen=True)
class Trusted:
    """A call that was declared: its name, its source line, and its axes as text."""

    call: str
    where: str
    axes: str

    def __str__(self) -> str:
        return f"taken on trust: {self.call} at {self.where}: one by one along {self.axes}"


def call_names(op: Operation) -> list[str]:
    """What a custom call goes by: its target, and the name of the kernel that it launches."""
    names = [mlir.text_attribute(op, name) for name in ("call_target_name", "kernel_name")]
    config = mlir.attributes(op).get("mhlo.backend_config")
    if isinstance(config, ir.DictAttr) and "name" in config:
        names.append(str(cast(Any, config["name"]).value))
    return [name for name in names if name]


def declare(op: Operation, factors: Sequence[Axes]) -> None:
    """Note the axes at the op, counted from the front. Raises ValueError where they do not fit."""
    known = [_fitting(op, axes) for axes in factors]
    with mlir.context():
        i64 = ir.IntegerType.get_signless(64)
        rows = [[ir.IntegerAttr.get(i64, NONE if a is None else a) for a in own] for own in known]
        op.attributes[DECLARED] = ir.ArrayAttr.get([ir.ArrayAttr.get(row) for row in rows])


def _fitting(op: Operation, axes: Axes) -> Axes:
    """The axes from the front, where each exists and all have one size."""
    values = [*op.operands, *op.results]
    shapes = [mlir.shape(v) for v in values]
    name, where = call_names(op)[0], source_line(op)
    if len(axes) != len(shapes):
        raise ValueError(
            f"{len(axes)} axes are declared for {name} at {where}, which has {len(op.operands)} "
            f"operands and {len(op.results)} results; pass one for each, or None"
        )
    for axis, shape in zip(axes, shapes, strict=True):
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise ValueError(
                f"axis {axis} is declared for {name} at {where}, of an array of shape {shape}"
            )
    sizes = {s[a] for a, s in zip(axes, shapes, strict=True) if a is not None}
    if len(sizes) > 1:
        raise ValueError(
            f"the axes declared for {name} at {where} have different sizes: "
            f"{', '.join(map(str, sorted(sizes)))}; all are the axis of the examples"
        )
    return tuple(None if a is None else a % len(s) for a, s in zip(axes, shapes, strict=True))


def declared_axes(op: Operation) -> list[Axes] | None:
    """The axes that were declared of an op, a tuple for each factor; None where none were."""
    if op.name != CUSTOM_CALL or DECLARED not in op.attributes:
        return None
    return axes_in(op.attributes[DECLARED])


def axes_in(rows: Any) -> list[Axes]:
    """The axes in an attribute of rows of integers."""
    return [tuple(None if a.value == NONE else a.value for a in row) for row in rows]


def trusted(op: Operation) -> Trusted | None:
    """What was declared of an op, to be said to its user; None where nothing was."""
    factors = [axes for axes in declared_axes(op) or [] if any(a is not None for a in axes)]
    if not factors:
        return None
    count = len(op.operands)
    texts = [f"{_text(axes[:count])} -> {_text(axes[count:])}" for axes in factors]
    return Trusted(call_names(op)[-1], source_line(op), "; ".join(texts))


def _text(axes: Axes) -> str:
    return f"({', '.join('-' if a is None else str(a) for a in axes)})"


def declared_rule(op: Operation) -> Rule | None:
    """The rule that was declared; None where none was."""
    factors = declared_axes(op)
    return None if factors is None else rule_along(op, factors)


# How many arrays each takes, lengths aside, and which of them is a bias, that may be one for all.
# Dropout and FP8 are not among them: a mask differs by place, and FP8 has maxima over the batch.
CALLS = {
    "__cudnn$fmhaSoftmax": (3, None),
    "__cudnn$fmhaScaleBiasSoftmax": (4, 3),
    "__cudnn$fmhaSoftmaxBackward": (6, None),
    "__cudnn$fmhaScaleBiasSoftmaxBackward": (7, 5),
}
# The result of a backward call that is the gradient of its bias, if it has one. Work space is last.
BIAS_GRADIENT = 3
# Of a call that pads, the lengths of the queries and keys follow, [B].
PADDING = {"NO_MASK": 0, "CAUSAL": 0, "PADDING": 2, "PADDING_CAUSAL": 2}
PRODUCTS = "_dot_dimension_numbers"
# What a configuration may say beside the products; with anything else nothing is known of the call.
KNOWN = frozenset(
    [
        "algorithm",
        "dropout_rate",
        "fmha_scale",
        "intermediate_tensor_shape",
        "is_flash_attention",
        "is_paged_attention",
        "mask_type",
        "max_seg_per_batch",
        "seed",
        "sliding_window_length",
    ]
)


def attention_rule(op: Operation) -> Rule | None:
    """How the arrays of a call share the batch; None for another op, or one that does not show it.

    Examples packed into one row, and keys in pages, are not known.
    """
    count, bias = CALLS.get(mlir.text_attribute(op, "call_target_name"), (0, None))
    said = _said(op) if count else None
    if said is None or not _is_plain(said):
        return None
    given, lengths = len(op.operands), PADDING.get(said.get("mask_type", ""))
    axes = [_batch_axis(op, value) for value in (*op.operands, *op.results)]
    without = {bias, given + BIAS_GRADIENT, len(axes) - 1}
    has_batch = all(axis == 0 for i, axis in enumerate(axes) if i not in without)
    if lengths is None or given != count + lengths or not has_batch:
        return None
    return rule_along(op, [(*axes[:-1], None)])


def _batch_axis(op: Operation, value: Value) -> int | None:
    """The batch of a call's array: its dimension 0, if it is as long as that of the queries."""
    batch, shape = mlir.shape(op.operands[0])[:1], mlir.shape(value)
    return 0 if batch and shape[:1] == batch else None


def _said(op: Operation) -> dict[str, Any] | None:
    """What the call is configured by; None where that is not all known."""
    try:
        said: Any = json.loads(mlir.text_attribute(op, "backend_config"))
        config = dict(said["cudnn_fmha_backend_config"])
    except (ValueError, KeyError, TypeError):
        return None
    rest = {name for name in config if not name.endswith(PRODUCTS)}
    return config if rest <= KNOWN else None


def _is_plain(said: dict[str, Any]) -> bool:
    """Whether all products have the batch, and nothing goes across it."""
    products = [x for name, x in said.items() if name.endswith(PRODUCTS)]
    batched = all(
        product.get(f"{side}_batch_dimensions", [])[:1] == ["0"]
        for product in products
        for side in ("lhs", "rhs")
    )
    packed = said.get("max_seg_per_batch", 1) != 1 or said.get("is_paged_attention", False)
    return bool(products) and batched and not packed and said.get("dropout_rate", 0) == 0
