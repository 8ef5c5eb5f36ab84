"""Monomials: given a value behind functions that factor, its elements as products of smaller ones'.

    %o = dot_general %h[b, d], %l[b, f] batching b
    %t = transpose %o, dims = [0, 2, 1]
    %a = abs %t ; %s = multiply %a, %a
    %m = multiply %s, broadcast %w          =>    abs(h[b, d] l[b, f])**2 w[d]    over [b, f, d]

What is no such product is a monomial of one factor, itself. Indices (atoms) are split where a
reshape splits them.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value


@dataclass(frozen=True, eq=False)
class Atom:
    """An index, of a size other than 1; equal to itself alone."""

    size: int


Atoms = tuple[Atom, ...]


@dataclass(frozen=True)
class Factor:
    """A value, its elements in row-major order of these atoms; or 1 over it."""

    value: Value
    atoms: Atoms
    inverted: bool = False


@dataclass(frozen=True)
class Term:
    """Functions, each with f(ab) = f(a) f(b), that are applied in order to a product."""

    functions: tuple[str, ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class Monomial:
    """A product of terms; each dimension's merged atoms; the outer products (dots) seen through.

    `real`: its real part is meant.
    """

    terms: tuple[Term, ...]
    dims: tuple[Atoms, ...]
    dots: tuple[mlir.Operation, ...] = ()
    real: bool = False

    @property
    def atoms(self) -> Atoms:
        """All indices, in row-major order."""
        return tuple(itertools.chain(*self.dims))

    @property
    def factors(self) -> list[Factor]:
        """The factors of all terms."""
        return [factor for term in self.terms for factor in term.factors]

    @property
    def is_outer(self) -> bool:
        """Whether it is made of an outer product, and is larger than each of its factors."""
        held = {atom for factor in self.factors for atom in factor.atoms}
        return bool(self.dots) and all(held - set(factor.atoms) for factor in self.factors)


def single_factor(value: Value) -> Monomial:
    """The value as a monomial of itself alone."""
    dims = tuple(map(_fresh, mlir.shape(value)))
    return Monomial((Term((), (Factor(value, tuple(itertools.chain(*dims))),)),), dims)


def applied(function: str, to: Monomial) -> Monomial | None:
    """A function that factors, of a monomial; None of a real part, of which it does not."""
    terms = tuple(replace(term, functions=(*term.functions, function)) for term in to.terms)
    return None if to.real else replace(to, terms=terms)


def inverse(of: Monomial) -> Monomial | None:
    """1 over a monomial that is no outer product."""
    return (
        None
        if of.dots or of.real
        else _with_factors(of, lambda f: replace(f, inverted=not f.inverted))
    )


def product(one: Monomial, other: Monomial) -> Monomial | None:
    """The elementwise product of two monomials of one shape; None if no atoms suit both."""
    left, right = (
        split(one, [a.size for a in other.atoms]),
        split(other, [a.size for a in one.atoms]),
    )
    if left is None or right is None or (one.real and other.real):
        return None
    right = renamed(right, {old: (new,) for old, new in zip(right.atoms, left.atoms, strict=True)})
    terms: dict[tuple[str, ...], tuple[Factor, ...]] = {}
    for term in (*left.terms, *right.terms):
        terms[term.functions] = (*terms.get(term.functions, ()), *term.factors)
    merged = tuple(Term(functions, factors) for functions, factors in terms.items())
    return Monomial(merged, left.dims, (*left.dots, *right.dots), left.real or right.real)


def reshaped(operand: Monomial, shape: Sequence[int]) -> Monomial | None:
    """The same elements in row-major order, in another shape; None where no atoms suit both."""
    fine = split(operand, [size for size in shape if size != 1])
    return None if fine is None else replace(fine, dims=_grouped(fine.atoms, shape))


def placed(operand: Monomial, sources: Sequence[int | None], shape: Sequence[int]) -> Monomial:
    """Repeated to a shape: for each dimension the operand's that runs along it, None for none.

    A dimension of size 1 is repeated too. All dimensions of another size must have their place.
    """
    dims = (() if source is None else operand.dims[source] for source in sources)
    return replace(
        operand, dims=tuple(dim or _fresh(size) for dim, size in zip(dims, shape, strict=True))
    )


def _fresh(size: int) -> Atoms:
    return (Atom(size),) if size != 1 else ()


def split(operand: Monomial, sizes: Sequence[int]) -> Monomial | None:
    """The monomial with its atoms split where these sizes, in row-major order, begin a new one."""
    own = [atom.size for atom in operand.atoms]
    common = _refinement(own, sizes)
    if common is None:
        return None
    return renamed(
        operand,
        dict(zip(operand.atoms, _grouped([Atom(size) for size in common], own), strict=True)),
    )


def renamed(operand: Monomial, new: Mapping[Atom, Atoms]) -> Monomial:
    """The monomial with other atoms in place of some."""

    def replaced(atoms: Atoms) -> Atoms:
        return tuple(itertools.chain(*(new.get(atom, (atom,)) for atom in atoms)))

    factors = _with_factors(operand, lambda f: replace(f, atoms=replaced(f.atoms)))
    return replace(factors, dims=tuple(map(replaced, operand.dims)))


def _with_factors(operand: Monomial, change: Callable[[Factor], Factor]) -> Monomial:
    terms = tuple(replace(term, factors=tuple(map(change, term.factors))) for term in operand.terms)
    return replace(operand, terms=terms)


def _refinement(one: Sequence[int], other: Sequence[int]) -> list[int] | None:
    """Sizes that both lists are products of neighbours of: [6, 4], [2, 12] -> [2, 3, 4]."""
    cuts = sorted(
        {*itertools.accumulate(one, int.__mul__), *itertools.accumulate(other, int.__mul__)}
    )
    pairs = list(itertools.pairwise([1, *cuts]))
    return (
        None if any(end % start for start, end in pairs) else [end // start for start, end in pairs]
    )


def _grouped(atoms: Sequence[Atom], shape: Sequence[int]) -> tuple[Atoms, ...]:
    """The atoms in order, as many for each dimension as fill it."""
    remaining, dims = list(atoms), list[Atoms]()
    for size in shape:
        taken: list[Atom] = []
        while math.prod(atom.size for atom in taken) < size:
            taken.append(remaining.pop(0))
        dims.append(tuple(taken))
    return tuple(dims)
