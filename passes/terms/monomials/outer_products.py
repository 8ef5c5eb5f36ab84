"""Outer products: given a dot_general, the monomial it sums and over what: nothing if rank one.

dot_general %h[b, d], %l[b, f] batching b                   =>   h[b, d] l[b, f]
dot_general %w[b], %o[b, d, f] contracting b                =>   w[b] o[b, d, f] over b
"""

import itertools
from dataclasses import replace

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of, is_static_array
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.terms.contracted_dims import contracted
from hlo_surgery.passes.terms.monomials.monomials import (
    Atoms,
    Monomial,
    placed,
    product,
    single_factor,
)

PRECISE = frozenset(map(np.dtype, ["f4", "f8", "c8", "c16"]))


def is_precise(value: Value) -> bool:
    """Whether the value is an array of floats, or complex numbers of them, of at least 32 bits."""
    return is_static_array(value) and dtype_of(value) in PRECISE


def outer_product(op: Operation) -> Monomial | None:
    """A dot_general as the product of its two operands, example by example; None where it sums."""
    lhs, rhs = map(single_factor, op.operands)
    found = dot_product(op, lhs, rhs)
    if found is None or found[1]:
        return None
    return replace(found[0], dims=found[0].dims[: len(mlir.shape(op.results[0]))])


def dot_product(op: Operation, lhs: Monomial, rhs: Monomial) -> tuple[Monomial, Atoms] | None:
    """The monomial that a dot_general sums, from its operands', and over which atoms.

    Its dimensions are those of the result, then those that are contracted.
    None where it accumulates in fewer bits, or by an algorithm of its own.
    """
    widens = all(
        np.can_cast(dtype_of(v), dtype_of(op.results[0])) and mlir.is_inexact(v)
        for v in op.operands
    )
    if "algorithm" in op.attributes or not widens:
        return None
    one, other = contracted(op).values()
    shape = (*mlir.shape(op.results[0]), *(one.shape[d] for d in one.summed))
    left = placed(lhs, [*one.batch, *one.free, *[None] * len(other.free), *one.summed], shape)
    right = placed(rhs, [*other.batch, *[None] * len(one.free), *other.free, *other.summed], shape)
    found, rank = product(left, right), len(shape) - len(one.summed)
    if found is None or (found.real and mlir.is_complex(op.results[0])):
        return None
    atoms = tuple(itertools.chain(*found.dims[rank:]))
    return replace(found, dots=(*found.dots, op)), atoms
