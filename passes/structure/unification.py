"""Unification: the digits of all dimensions of a module, unified by what each op does to indices.

    %h = dot_general %x [B, D], %w [D, F]        h's first dimension is x's, its second w's
    %r = reshape %h [B, F] -> [M, b, F]          B splits into (M, b), in x as well
    while (%c = %r) { return %n }                what a loop starts from, hands on and results in

One pass over all ops, in any order: a unification once made holds everywhere. None is taken on
trust: whether an op may do to examples what it does is asked of its link when it is classified.

Rules: which dimensions of an op's operands and results share an index (a factor), and what sums.

    dot_general : ([i, m], [m, k]) -> ([i, k])      i and k kept, m reduced

An element of the result at index k of a factor reads operands at k alone. Shardy has such a rule
for every op that XLA can partition; here stand those that differ from Shardy's, or that it lacks.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.dataflow.kernels import (
    ATTRIBUTE,
    CUSTOM_CALL,
    Rule,
    attention_rule,
    declared_rule,
    rule_along,
)
from hlo_surgery.passes.dataflow.mosaic_kernels import kernel_rule
from hlo_surgery.passes.dataflow.numbers import counter_values
from hlo_surgery.passes.ir import mlir, traits
from hlo_surgery.passes.ir.mlir import Block, Operation, Shape, Value, Values
from hlo_surgery.passes.structure import places
from hlo_surgery.passes.structure.digits import Digit, Digits, aligned_runs, leaves, unify
from hlo_surgery.passes.structure.places import Unifying
from hlo_surgery.passes.structure.ragged import find_ragged
from hlo_surgery.passes.structure.structure import (
    Counted,
    CountedLoop,
    Dims,
    Link,
    Structure,
    Taking,
)

Shapes = tuple[tuple[Shape, ...], tuple[Shape, ...]]
# Ops of which a rule's attribute does not say all: where they move, and whose indices count.
BY_MORE = frozenset(
    f"stablehlo.{name}" for name in ("convolution", "custom_call", "gather", "scatter")
)
# The digits of each factor of an op.
Places = dict[int, Digits]


# The axis of arguments whose rows are the examples' by ids, and the number of the ids' argument.
# Where there is such a mapping, rows may also be taken by other indices.
Ragged = Mapping[int, tuple[int, int]]


def structured(
    block: Block, batch: Mapping[int, int], size: int, ragged: Ragged | None
) -> tuple[Structure, Digits]:
    """The structure of main, and the digit of the examples, as it is split everywhere. `batch`: the
    examples' axis by argument; along it lie `size` examples of as many rows.
    """
    found, examples = Unifying(), Digit(size)
    for number, axis in batch.items():
        argument = block.arguments[number]
        rows = mlir.shape(argument)[axis] // max(size, 1)
        if size > 1:
            unify([examples, *([Digit(rows)] if rows > 1 else [])], found.of(argument)[axis])
    if ragged is not None:
        rows = {ids: Digit(mlir.shape(block.arguments[ids])[0]) for _, ids in ragged.values()}
        for number, (axis, ids) in ragged.items():
            unify([rows[ids]], found.of(block.arguments[number])[axis])
        found.ragged = [(digit, block.arguments[ids]) for ids, digit in rows.items()]
    _visit_block(found, block)
    if ragged is not None:
        left = [a for n, a in enumerate(block.arguments) if n not in (*batch, *ragged)]
        floats = filter(mlir.is_inexact, [*left, *mlir.returned(block)])
        found.others = [digits for value in floats for digits in found.of(value)]
        if len(leaves([examples])) == 1:
            find_ragged(found, examples.root)
    return found, leaves([examples]) if size > 1 else []


def _visit_block(known: Unifying, block: Block) -> None:
    ops = mlir.operations(block)[:-1]
    known.ops[block] = [Taking(op, op.name, mlir.operands(op), mlir.results(op)) for op in ops]
    for taking in known.ops[block]:
        _visit(known, taking)


def _visit(known: Unifying, taking: Taking) -> None:
    op, name, operands, results = taking
    if name == "stablehlo.while":
        _visit_loop(known, op)
    elif name in mlir.CONTROL_FLOW:
        _visit_branches(known, op)
    elif name == mlir.BARRIER:
        for operand, result in zip(operands, results, strict=True):
            known.alike(operand, result)
    elif name == "stablehlo.reshape":
        _reshape(known, op)
    elif name in _SPECIAL:
        known.links[results[0]] = _SPECIAL[name](known, op)
    elif results and (name == CUSTOM_CALL or ATTRIBUTE in op.attributes):
        _link(known, taking)


def _visit_loop(known: Unifying, op: Operation) -> None:
    condition, body = mlir.blocks(op)
    returned = mlir.returned(body)
    for i, start in enumerate(op.operands):
        known.alike(start, condition.arguments[i], body.arguments[i], returned[i], op.results[i])
    counters, around = counter_values(op), known.around
    if counters:
        known.loops[body] = CountedLoop(len(next(iter(counters.values()))), counters)
        known.around = [*around, known.loops[body]]
    _visit_block(known, condition)
    _visit_block(known, body)
    known.around = around
    for argument, value, result in zip(body.arguments, returned, op.results, strict=True):
        part = _stacked_part(known, argument, value)
        if part is not None:
            known.told.stacks[result] = part


def _stacked_part(known: Unifying, argument: Value, returned: Value) -> Value | None:
    """What a step writes into what it hands on, if the steps write each place once, and all."""
    write = mlir.made_by(returned, "stablehlo.dynamic_update_slice")
    if write is None:
        return None
    link = known.links[returned]
    covers = write.operands[0] == argument and len(link.steps) == 1 and None not in link.results[0]
    return write.operands[1] if covers else None


def _visit_branches(known: Unifying, op: Operation) -> None:
    for region in op.regions:
        block = region.blocks[0]
        _visit_block(known, block)
        returned = mlir.returned(block)
        for value, result in zip(returned, op.results, strict=True):
            known.alike(value, result)


def _reshape(known: Unifying, op: Operation) -> None:
    """Runs of digits between the same places of the row-major order align, or are torn apart."""
    if 0 in mlir.shape(op.result):
        return
    torn: Digits = []
    flat = ([d for dim in known.of(v) for d in dim] for v in (op.operands[0], op.result))
    for one, two in aligned_runs(*flat):
        if not unify(one, two):
            torn += [*one, *two]
    known.links[op.result] = Link([], [], torn=torn)


def _link(known: Unifying, taking: Taking) -> None:
    """Unify what shares a factor, and keep the link for whoever classifies the op."""
    op, name, operands, results = taking
    link = linked(taking, known.kinds)
    if link is None:
        return
    if name in ("stablehlo.gather", "stablehlo.scatter"):
        places.align_own_rows(known, op, link)
    alike, values = link.alike, (*operands, *results)
    torn = known.alike(*values) if alike else _unify_factors(known, link, operands, results)
    known.links[results[0]] = replace(link, torn=torn) if torn else link


def linked(taking: Taking, known: dict[object, Link | None]) -> Link | None:
    """An op by the factors of its rule; None where it has none. `known`: links of before, as a
    module has few kinds of ops.
    """
    op, name, operands, results = taking
    key = None
    if name not in BY_MORE:
        key = name, op.attributes[ATTRIBUTE], *[v.type for v in (*operands, *results)]
        if key in known:
            return known[key]
    rule = rule_of(op)
    shapes = tuple(map(mlir.shape, operands)), tuple(map(mlir.shape, results))
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
        return kernels.rule_of(op)
    declared = declared_rule(op)
    if declared is None and traits.is_batched_call(op):
        return _matrix_rule(op)
    return declared or kernel_rule(op) or attention_rule(op) or kernels.rule_of(op)


def _matrix_rule(op: Operation) -> Rule:
    """A LAPACK call works matrix by matrix: dimensions before the matrices are kept, others
    blocked. A solve with a single matrix works column by column (from the left) or row by row.
    """
    shapes = [mlir.shape(v) for v in (*op.operands, *op.results)]
    lead = max(map(len, shapes)) - traits.own_dimensions(op)
    along = [tuple(d if d < len(s) else None for s in shapes) for d in range(lead)]
    told = traits.solve_letters(op) if lead == 0 else None
    if told is not None:
        # Of right-hand sides and results the dimension that is no equation's is kept.
        free, sides = int(told["side"] == "L"), (1, len(op.operands))
        along.append(tuple(free if n in sides else None for n in range(len(shapes))))
    return rule_along(op, along)


def _unify_factors(known: Unifying, link: Link, operands: Values, results: Values) -> Digits:
    """The digits of dimensions that share a factor and do not align."""
    if len(results) == 1 and not any(link.operands):
        # Numbers alone, as many ops spread; what is made of them finds its digits as it is used.
        return []
    places: Places = {}
    rows = zip((*operands, *results), (*link.operands, *link.kept), strict=True)
    return [d for v, row in rows for d in _unify_row(link, row, known.of(v), places)]


def _unify_row(link: Link, row: list[Counted], dims: Dims, places: Places) -> Digits:
    """Those of one value; `places`: the digits of each factor so far."""
    torn: Digits = []
    for own, digits in zip(row, dims, strict=True):
        if not own or not digits:
            continue
        if len(own) == 1:
            counted = places.setdefault(own[0], digits)
        else:
            for factor in own:
                size = link.sizes[factor] if factor >= 0 else 1
                places.setdefault(factor, [Digit(size)] if size > 1 else [])
            counted = [digit for factor in own for digit in places[factor]]
        if counted is not digits and not unify(counted, digits):
            torn += [*counted, *digits]
    return torn


_SPECIAL = {
    "stablehlo.slice": places.sliced,
    "stablehlo.pad": places.padded,
    "stablehlo.concatenate": places.concatenated,
    "stablehlo.dynamic_slice": places.dynamic_slice,
    "stablehlo.dynamic_update_slice": places.dynamic_update_slice,
}
