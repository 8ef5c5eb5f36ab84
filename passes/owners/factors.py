"""Factors: what ops do to owners by Shardy's rules, which say what dimensions count by.

    dot_general : ([b, l, m], [m, n]) -> ([b, l, n])    b, l, n kept, m reduced

An element of the result at index k of a factor is made of the elements of all operands at k, so
that these must have one owner: sound, since the rule says that no other is read. Of a blocked
factor (windows, sorting) all indices meet; of a reduced one all go into one element, and if that is
a sum of terms of one owner each, it is r + sum of c_b.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import cast

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL, declared_rule
from hlo_surgery.passes.dataflow.fused_attention import attention_rule
from hlo_surgery.passes.dataflow.mosaic_kernels import kernel_rule
from hlo_surgery.passes.dataflow.sharding_rules import ATTRIBUTE, Rule
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.digits import regrouped
from hlo_surgery.passes.owners.labelling.frames import Frame, OnFactors, framed
from hlo_surgery.passes.owners.labelling.labels import (
    MANY,
    Digits,
    Labels,
    Numbers,
    join,
    over,
    share_of_nobody,
)
from hlo_surgery.passes.owners.owners import Owners

Dims = tuple[tuple[int, ...], ...]

SORT = "stablehlo.sort"
# By name of an op, the operand that is an array of index vectors.
INDICES = {"stablehlo.gather": 1, "stablehlo.scatter": 1}


@dataclass(frozen=True)
class Meeting:
    """The operands of an op over the factors of its rule.

    `met`: the joint owner of what meets at each index of all factors, [*steps, *digits]; `apart`:
    the same, all indices of blocked factors being together. `hides`: whether what is nobody's in an
    operand has an owner there, as along a dimension that no factors make up.
    """

    op: Operation
    rule: Rule
    frame: Frame
    met: Numbers
    apart: Numbers
    hides: bool
    results: dict[int, Labels] = field(default_factory=dict[int, Labels])

    def result(self, index: int) -> Labels:
        """The labels of a result; MANY where several owners go into one element."""
        if index not in self.results:
            dims = self._counted_dims(index)
            owners = over(self.apart, self._lost_axes(dims))
            self.results[index] = self.frame.result(owners, dims)
        return self.results[index]

    def adds_up(self, index: int) -> bool:
        """Whether a result adds up terms of one owner each."""
        dims = self._counted_dims(index)
        axes = self.frame.axes.items()
        lost = set(self._lost_axes(dims))
        varying = {f for f, own in axes if any(a in lost and self.met.shape[a] > 1 for a in own)}
        single = not (self.apart == MANY).any()
        return single and varying <= self.rule.reduced and linearity.sums(self.op, index)

    def adds_nobodys(self, index: int) -> bool:
        """Whether a result adds up an example's terms and nobody's, as of rows of padding, or puts
        them in one order, in which they may be added up.
        """
        rows, left = share_of_nobody(self.met), self.result(index).nobodys_share
        meet = linearity.sums(self.op, index) or self.op.name == SORT
        return (self.hides or rows > left) and meet

    def keeps_rows(self) -> bool:
        """Whether owners vary along factors that the op does not sum over."""
        axes = self.frame.axes.items()
        kept = (own for f, own in axes if f not in self.rule.reduced)
        return any(self.met.shape[axis] > 1 for own in kept for axis in own)

    def _counted_dims(self, index: int) -> list[tuple[int, ...] | int]:
        """The factors that each dimension of a result counts by; its size, where the rule does not
        say.
        """
        shape = mlir.shape(self.op.results[index])
        pairs = zip(self.rule.results[index], shape, strict=True)
        return [own if counts_by(self.rule, own, size) else size for own, size in pairs]

    def operand_dims(self, number: int) -> tuple[tuple[int, ...] | int, ...]:
        """The factors that each dimension of an operand counts by; its size, where those do not
        make it up.
        """
        shape = mlir.shape(self.op.operands[number])
        return tuple(counted_dims(self.rule, self.rule.operands[number], shape))

    def _lost_axes(self, dims: Sequence[tuple[int, ...] | int]) -> list[int]:
        kept = {f for own in dims if not isinstance(own, int) for f in own}
        return [a for f, axes in self.frame.axes.items() if f not in kept for a in axes]


def has_elements(value: Value) -> bool:
    """Whether an array has elements."""
    return 0 not in mlir.shape(value)


def have_elements(op: Operation) -> bool:
    """Whether all arrays that go into an op have elements. Indices need none: without numbers they
    say that nothing moves, as those of `x.at[:]`.
    """
    indices = INDICES.get(op.name)
    return all(has_elements(v) for i, v in enumerate(op.operands) if i != indices)


def counts_by(rule: Rule, factors: Sequence[int], size: int) -> bool:
    """Whether a dimension is what these factors make up, each once."""
    exact = math.prod(rule.sizes[f] for f in factors) == size
    return exact and len(set(factors)) == len(factors)


def counted_dims(rule: Rule, dims: Dims, shape: Sequence[int]) -> list[tuple[int, ...] | int]:
    """The factors that each dimension counts by; its size, where those do not make it up, or count
    one before it.
    """
    found, taken = list[tuple[int, ...] | int](), set[int]()
    for own, size in zip(dims, shape, strict=True):
        if counts_by(rule, own, size) and not taken & set(own):
            found.append(own)
            taken |= set(own)
        else:
            found.append(size)
    return found


def meeting(
    owners: Owners, op: Operation, operands: Sequence[Labels], steps: int
) -> Meeting | None:
    """The operands of an op over the factors of its rule; None where it has none.

    Ops of one rule on the same labels do the same: a module has few kinds of them.
    """
    if ATTRIBUTE not in op.attributes or op.name == CUSTOM_CALL:
        return meeting_of(op, operands, steps)
    kinds = tuple(r.type for r in op.results)
    key = (op.attributes[ATTRIBUTE], kinds, tuple(operands), steps, op.name)
    if key not in owners.meetings:
        owners.meetings[key] = meeting_of(op, operands, steps)
    found = cast(Meeting | None, owners.meetings[key])
    return replace(found, op=op) if found else None


def meeting_of(op: Operation, operands: Sequence[Labels], steps: int) -> Meeting | None:
    """The same, worked out anew."""
    rule = rule_of(op, bool(operands) and operands[0].is_nobodys)
    if rule is None:
        return None
    placed = [on_factors(rule, dims, x) for dims, x in zip(rule.operands, operands, strict=True)]
    frame = framed(placed, rule.sizes, steps)
    met = reduce(join, frame.owners)
    blocked = [axis for f in rule.blocked for axis in frame.axes[f]]
    pairs = zip(operands, placed, strict=True)
    hides = any(x.nobodys_share > y.nobodys_share for x, (y, _) in pairs)
    return Meeting(op, rule, frame, met, over(met, blocked), hides)


def on_factors(rule: Rule, dims: Dims, labels: Labels) -> OnFactors:
    """Labels with a dimension for each factor.

    A dimension that no factors make up exactly is one for all of the result: its owner is that of
    all its elements.
    """
    digits, owners = list[Digits](), labels.owners
    sizes, factors = list[int](), list[int]()
    for dim, own in enumerate(counted_dims(rule, dims, labels.shape)):
        if isinstance(own, int):
            owners = over(owners, labels.axes(dim))
            digits.append((1,) * len(labels.digits[dim]))
        else:
            digits.append(labels.digits[dim])
            sizes += [rule.sizes[f] for f in own]
            factors += own
    return regrouped(Labels(tuple(digits), owners), sizes), factors


def rule_of(op: Operation, shared_matrix: bool) -> Rule | None:
    """The rule by which an op's operands meet; None where nothing is known.

    `shared_matrix`: whether no example reaches the first operand.
    """
    if op.name != CUSTOM_CALL:
        return sharding_rules.rule_of(op)
    declared = declared_rule(op)
    if declared is None and linearity.is_batched_call(op):
        return _matrix_rule(op, shared_matrix)
    return declared or kernel_rule(op) or attention_rule(op) or sharding_rules.rule_of(op)


def _matrix_rule(op: Operation, shared_matrix: bool) -> Rule:
    """A LAPACK call works matrix by matrix: dimensions before the matrices are kept, others
    blocked.

    A solve with one matrix for all examples works column by column (from the left) or row by row.
    """
    shapes = [mlir.shape(v) for v in (*op.operands, *op.results)]
    count, lead = len(op.operands), max(map(len, shapes)) - linearity.own_dimensions(op)
    sizes = [max((s[d] for s in shapes if len(s) > d), default=1) for d in range(lead)]
    from_left = linearity.solves_from_left(op) if shared_matrix else None
    side = None if from_left is None else (lead + 1 if from_left else lead)
    rows: list[tuple[tuple[int, ...], ...]] = []
    free: int | None = None
    for k, shape in enumerate(shapes):
        own = [(d,) for d in range(min(lead, len(shape)))]
        for dim in range(lead, len(shape)):
            is_side = dim == side and k in (1, count)
            if is_side and free is not None:
                own.append((free,))
                continue
            own.append((len(sizes),))
            free = len(sizes) if is_side else free
            sizes.append(shape[dim])
        rows.append(tuple(own))
    blocked = frozenset(f for f in range(lead, len(sizes)) if f != free)
    return Rule(tuple(sizes), tuple(rows[:count]), tuple(rows[count:]), frozenset(), blocked)
