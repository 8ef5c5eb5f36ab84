"""Pair weights: what is asked, as the program runs, of elements at which two examples meet.

    dot_general %p[i, j], %v[j, d] over j     where owners of i and j differ: %p zero, %v finite
    reduce max %s[i, j] over j                where they differ: not over the maximum of the others

Then each row has what it has without the rows of others: these could as well not be there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import jax.numpy as jnp

from hlo_surgery.passes.dataflow.sharding_rules import Rule
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.factors import counts_by
from hlo_surgery.passes.owners.following.term_meetings import Dims, over_dims
from hlo_surgery.passes.owners.following.terms import Array, Following, Term, Weighed, flagged


@dataclass(frozen=True)
class Weighing:
    """An op on pairs of rows: whose its operands are, and the two terms over its factors."""

    following: Following
    op: Operation
    rule: Rule
    own: Sequence[tuple[Term, ...]]
    one: Term
    other: Term

    @property
    def pair(self) -> tuple[Term, Term]:
        """Both terms."""
        return self.one, self.other

    @property
    def varying(self) -> frozenset[int]:
        """The factors along which owners vary."""
        return self.one.varying | self.other.varying


def weighed_sum(weighing: Weighing, kept: Term, other: Term, stays: bool) -> Weighed | None:
    """That products of what two examples own are zero. If `kept` stays, what anyone owns beside a
    row of nobody must be zero as well. None where dimensions are no factors.
    """
    rule, op, size = weighing.rule, weighing.op, weighing.following.size
    factors = range(len(op.operands)) if op.name == "stablehlo.dot_general" else range(1)
    values = [op.operands[i] for i in factors]
    dims = [rule.operands[i] for i in factors]
    both = weighing.varying
    if not all(_is_laid(rule, d, mlir.shape(v), both) for d, v in zip(dims, values, strict=True)):
        return None

    def found(*arrays: Array) -> Array:
        xs, (kept, other) = arrays[: len(values)], arrays[len(values) :]
        is_others = (other >= 0) & (other != kept) & ((kept >= 0) | stays)
        pairs = list(zip(xs, dims, strict=True))
        nonzero = [_any_over(rule, own, both, x != 0) for x, own in pairs]
        wild = [_any_over(rule, own, both, ~jnp.isfinite(x)) for x, own in pairs]
        # A product is something where all its factors are, or where one is inf or NaN.
        counts = reduce(jnp.logical_and, nonzero)
        bad = is_others & reduce(jnp.logical_or, wild, counts)
        return flagged(size, kept, bad) | flagged(size, other, bad)

    return Weighed(tuple(values), (kept, other), found)


def _is_laid(rule: Rule, dims: Dims, shape: Sequence[int], factors: frozenset[int]) -> bool:
    """Whether each of these factors that an operand has is a dimension of it."""
    return all(
        len(own) == 1 and counts_by(rule, own, n)
        for own, n in zip(dims, shape, strict=True)
        if factors.intersection(own)
    )


def _any_over(rule: Rule, dims: Dims, factors: frozenset[int], flags: Array) -> Array:
    """Whether any is true, over these factors; all others have size 1."""
    held = [own[0] if len(own) == 1 and own[0] in factors else None for own in dims]
    rest = tuple(d for d, f in enumerate(held) if f is None)
    left = [f for f in held if f is not None]
    order = sorted(range(len(left)), key=lambda i: left[i])
    sizes = [rule.sizes[f] if f in left else 1 for f in range(len(rule.sizes))]
    return jnp.transpose(jnp.any(flags, rest), order).reshape(sizes)


def weighed_maximum(weighing: Weighing, kept: Term, other: Term) -> Weighed | None:
    """That what others own is not over the maximum of what is one's own, or nobody's."""
    op, rule, following = weighing.op, weighing.rule, weighing.following
    dims, shape = rule.operands[0], mlir.shape(op.operands[0])
    one, more = (over_dims(following, rule, dims, shape, x) for x in (kept, other))
    if one is None or more is None:
        return None
    axes, size = integers(op, "dimensions"), following.size

    def found(x: Array, one: Array, more: Array) -> Array:
        is_others = (more >= 0) & (more != one)
        least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min
        own = jnp.max(jnp.where(is_others, least, x), axes, keepdims=True)
        bad = is_others & ~(x <= own)
        return flagged(size, one, bad) | flagged(size, more, bad)

    return Weighed((op.operands[0],), (one, more), found)


def weighed_terms(size: int, value: Value, one: Term, other: Term) -> Weighed:
    """That what two examples own is zero, of elements that are added up somewhere."""

    def found(x: Array, one: Array, other: Array) -> Array:
        bad = (one >= 0) & (other >= 0) & (one != other) & (x != 0)
        return flagged(size, one, bad) | flagged(size, other, bad)

    return Weighed((value,), (one, other), found)
