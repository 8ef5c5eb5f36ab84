"""Fused attention: cuDNN's calls, which take the batch, their dimension 0, an index at a time.

    custom_call @__cudnn$fmhaSoftmaxBackward(%q, %k, %v, %stats, %do, %o)
        =>   ([b, ...], [b, ...], ...) -> ([b, ...], [b, ...], [b, ...], [_])

Such a call says of itself by which products it is defined: attention, and its derivatives, with
dimension 0 a batch dimension of each. Softmax and masks are taken along the keys. So
`jax.nn.dot_product_attention(implementation="cudnn")` lowers. A bias of one for all is blocked, and
with it its gradient, which is summed over the batch.
"""

import json
from typing import Any

from hlo_surgery.passes.dataflow.sharding_rules import Rule, rule_along
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value

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
