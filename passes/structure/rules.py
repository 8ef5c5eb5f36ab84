"""Rules: which dimensions of an op's operands and results share an index (a factor), and what sums.

    dot_general : ([i, m], [m, k]) -> ([i, k])      i and k kept, m reduced

An element of the result at index k of a factor reads operands at k alone. Shardy has such a rule
for every op that XLA can partition; here stand those that differ from Shardy's, or that it lacks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL, declared_rule
from hlo_surgery.passes.dataflow.fused_attention import attention_rule
from hlo_surgery.passes.dataflow.mosaic_kernels import kernel_rule
from hlo_surgery.passes.dataflow.sharding_rules import ATTRIBUTE, Factors, Rule
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.structure.digits import Digit, unify

Shape = tuple[int, ...]
Shapes = tuple[tuple[Shape, ...], tuple[Shape, ...]]
# Ops of which a rule's attribute does not say all: where they move, and whose indices count.
BY_MORE = frozenset(
    f"stablehlo.{name}" for name in ("convolution", "custom_call", "gather", "pad", "scatter")
)
# The factors that a dimension counts by, each once; None where they do not make it up.
Counted = tuple[int, ...] | None


@dataclass(eq=False)
class Link:
    """An op by factors: what each dimension of `operands` and `results` counts by, the factors'
    `sizes`, and which are `reduced` or `blocked`, so that all their indices meet.

    Of the first operand: `steps`, dimensions of which a loop's step takes one place, by the digit
    that counts these; `places`, dimensions of which one place is taken or put, and which one.
    `torn`: digits that were laid side by side and do not align. `alike`: whether all dimensions of
    all operands and results are the same factors, as of what works element by element.
    """

    operands: list[list[Counted]]
    results: list[list[Counted]]
    sizes: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()
    steps: dict[int, Digit] = field(default_factory=dict[int, Digit])
    places: dict[int, int] = field(default_factory=dict[int, int])
    torn: list[Digit] = field(default_factory=list[Digit])
    alike: bool = False


def align(link: Link, one: list[Digit], two: list[Digit]) -> None:
    """Unify what an op lays side by side, and note where it does not align."""
    if not unify(one, two):
        link.torn += [*one, *two]


def moving(operands: Sequence[Shape], results: Sequence[Shape]) -> Link:
    """A link that has a factor for each dimension, as of an op that keeps their order."""
    return Link([*map(_each, operands)], [*map(_each, results)])


def _each(shape: Shape) -> list[Counted]:
    return [(dim,) for dim in range(len(shape))]


def linked(op: Operation, shapes: Shapes, known: dict[object, Link | None]) -> Link | None:
    """An op by the factors of its rule; None where it has none. `shapes`: of operands and results;
    `known`: links of before, as a module has few kinds of ops.
    """
    attributes = op.attributes
    key = None
    if ATTRIBUTE in attributes and op.name not in BY_MORE:
        key = op.name, attributes[ATTRIBUTE], shapes
        if key in known:
            return known[key]
    rule = rule_of(op)
    link = None if rule is None else _by_rule(rule, shapes)
    if key:
        known[key] = link
    return link


def _by_rule(rule: Rule, shapes: Shapes) -> Link:
    rows = [
        [
            _counted(zip(factors, shape, strict=True), rule)
            for factors, shape in zip(*pair, strict=True)
        ]
        for pair in zip((rule.operands, rule.results), shapes, strict=True)
    ]
    first, *others = [*rows[0], *rows[1]]
    single = all(own is not None and len(own) == 1 for own in first)
    alike = single and not rule.blocked and all(row == first for row in others)
    return Link(rows[0], rows[1], rule.sizes, rule.reduced, rule.blocked, alike=alike)


def _counted(dims: Iterable[tuple[tuple[int, ...], int]], rule: Rule) -> list[Counted]:
    """What each dimension counts by. Rules describe placement, so that each is checked: factors
    must make up the dimension exactly, and each may count once.
    """
    found, taken = list[Counted](), set[int]()
    for own, size in dims:
        exact = math.prod([rule.sizes[f] for f in own]) == size
        once = len(set(own)) == len(own) and taken.isdisjoint(own)
        found.append(own if exact and once else None)
        taken.update(own if exact and once else ())
    return found


def rule_of(op: Operation) -> Rule | None:
    """The rule of an op; None where nothing is known. What a custom call's author wrote is no rule:
    it describes placement, and not independence.
    """
    if op.name != CUSTOM_CALL:
        return sharding_rules.rule_of(op)
    declared = declared_rule(op)
    if declared is None and linearity.is_batched_call(op):
        return _matrix_rule(op)
    return declared or kernel_rule(op) or attention_rule(op) or sharding_rules.rule_of(op)


def _matrix_rule(op: Operation) -> Rule:
    """A LAPACK call works matrix by matrix: dimensions before the matrices are kept, others
    blocked. A solve with a single matrix works column by column (from the left) or row by row.
    """
    shapes = [mlir.shape(v) for v in (*op.operands, *op.results)]
    count, lead = len(op.operands), max(map(len, shapes)) - linearity.own_dimensions(op)
    from_left = linearity.solves_from_left(op) if lead == 0 else None
    side = None if from_left is None else int(from_left)
    sizes = [max((s[d] for s in shapes if len(s) > d), default=1) for d in range(lead)]
    # Of a solve's right-hand sides and results the dimension that is no equation's is kept.
    free = None if side is None else shapes[1][side]
    sizes += [] if free is None else [free]
    kept, rows = len(sizes), list[Factors]()
    for number, shape in enumerate(shapes):
        own = [(d,) for d in range(min(lead, len(shape)))]
        for dim in range(lead, len(shape)):
            is_free = dim == side and number in (1, count)
            own.append((lead,) if is_free else (len(sizes),))
            sizes += [] if is_free else [shape[dim]]
        rows.append(tuple(own))
    blocked = frozenset(range(kept, len(sizes)))
    return Rule(tuple(sizes), tuple(rows[:count]), tuple(rows[count:]), frozenset(), blocked)
