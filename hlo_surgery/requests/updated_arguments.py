"""Updated arguments: outputs that are an argument plus or minus something, as new parameters are.

    func @main(%w, %x) { %g = ... ; %step = 0.1 * %g ; %new = 0.99 * %w - %step ; return %new }

returns no gradient, though its output has the name and shape of one: it holds most of an argument.
Weight decay, `%g + 0.1 * %w`, is none of these: a gradient holds little of it.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any, cast

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.inlining import inline_calls
from hlo_surgery.passes.ir.mlir import Operation, Value

SAME = frozenset(
    [
        "stablehlo.broadcast_in_dim",
        "stablehlo.convert",
        "stablehlo.optimization_barrier",
        "stablehlo.reshape",
        "sdy.sharding_constraint",
    ]
)
# A value as a sum: how often it holds an argument, one, and what is neither.
Terms = Mapping[Value | str, float]
ONE, OTHER = "1", "other"
# An argument's share in its update, unlike that of weights in the gradient of their decay.
LEAST, MOST = 0.5, 1.0


def updated_arguments(module: Module) -> frozenset[int]:
    """The outputs that are most of an argument of their own shape plus or minus something."""
    code = mlir.clone(module.code)
    inline_calls(code)
    block = mlir.body(mlir.main_function(code))
    terms: dict[Value, Terms] = {argument: {argument: 1.0} for argument in block.arguments}
    for op in mlir.operations(block):
        terms.update(zip(mlir.results(op), _terms_of(op, terms), strict=True))
    outputs = mlir.operands(mlir.return_operation(block))
    return frozenset(i for i, value in enumerate(outputs) if _is_updated(value, terms[value]))


def _is_updated(output: Value, terms: Terms) -> bool:
    shares = [
        abs(share)
        for term, share in terms.items()
        if not isinstance(term, str) and mlir.shape(term) == mlir.shape(output)
    ]
    return len(terms) > 1 and any(LEAST <= share <= MOST for share in shares)


def _terms_of(op: Operation, terms: Mapping[Value, Terms]) -> list[Terms]:
    """Those of each result."""
    parts = [terms[value] for value in mlir.operands(op)]
    match op.name:
        case name if name in SAME:
            return parts
        case "stablehlo.add":
            return [_sum(parts[0], parts[1], 1.0)]
        case "stablehlo.subtract":
            return [_sum(parts[0], parts[1], -1.0)]
        case "stablehlo.negate":
            return [_sum({}, parts[0], -1.0)]
        case "stablehlo.multiply":
            return [_product(parts[0], parts[1])]
        case "stablehlo.constant":
            return [_of_constant(op)]
        case _:
            return [{OTHER: 1.0}] * len(mlir.results(op))


def _sum(one: Terms, other: Terms, sign: float) -> Terms:
    total = dict(one)
    for term, share in other.items():
        total[term] = total.get(term, 0.0) + sign * share
    return total


def _product(one: Terms, other: Terms) -> Terms:
    """What is neither a number nor an argument is one thing, as small as a learning rate is."""
    total: dict[Value | str, float] = {}
    for (a, share), (b, times) in product(one.items(), other.items()):
        term = b if a == ONE else a if b == ONE else OTHER
        total[term] = total.get(term, 0.0) + share * times
    return total


def _of_constant(op: Operation) -> Terms:
    # The bindings cannot read complex constants.
    if mlir.is_complex(op.results[0]):
        return {OTHER: 1.0}
    attribute = cast(Any, op.attributes["value"])
    return {ONE: float(attribute.get_splat_value().value)} if attribute.is_splat else {OTHER: 1.0}
