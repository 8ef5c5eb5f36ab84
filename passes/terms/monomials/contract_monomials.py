"""Contract monomials: a monomial's sum over some of its indices, with no array that has them all.

    sum_b (h[b, d] l[b, f] w[d, f])**2    =>    (sum_b h[b, d]**2 l[b, f]**2) w[d, f]**2

The factors fall into sides, by the indices that they have. One or two sides have indices that are
summed: two are contracted as the outer product was made, in its precision; the others multiply the
result.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.ir.attributes import precision
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.terms.monomials.balanced_factors import Ends, balance
from hlo_surgery.passes.terms.monomials.binary_exponents import (
    LOWEST,
    Scaled,
    exponent_of,
    from_scaled,
    times_power_of_two,
)
from hlo_surgery.passes.terms.monomials.monomial_products import (
    aligned,
    array_of,
    filled,
    mantissa_of,
    product_of_terms,
    sum_by_terms,
)
from hlo_surgery.passes.terms.monomials.monomials import Atom, Atoms, Factor, Monomial, Term
from hlo_surgery.passes.terms.monomials.paired_dims import laid_along, least_magnitudes, magnitudes


@dataclass(frozen=True)
class Contraction:
    """The sum of a monomial over atoms. `sides`: the atoms of each side; of the first
    `summed_sides`, some summed.
    """

    monomial: Monomial
    summed: Atoms
    sides: tuple[Atoms, ...]
    summed_sides: int

    @property
    def values(self) -> list[Value]:
        """What it is computed from."""
        return list(dict.fromkeys(factor.value for factor in self.monomial.factors))


def contraction(monomial: Monomial, summed: Atoms) -> Contraction | None:
    """The sum as a contraction; None if there is none, or an array as large as the product."""
    held = list(dict.fromkeys(frozenset(factor.atoms) for factor in monomial.factors))
    largest = [
        tuple(a for a in monomial.atoms if a in atoms)
        for atoms in held
        if not any(atoms < o for o in held)
    ]
    contracted = [side for side in largest if set(side) & set(summed)]
    others = [side for side in largest if side not in contracted]
    alike = len({precision(dot) for dot in monomial.dots}) == 1
    if not alike or len(contracted) not in (1, 2) or len(largest) < 2:
        return None
    return Contraction(monomial, summed, (*contracted, *others), len(contracted))


def contract(of: Contraction, operands: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
    """The sum, with the atoms that are left as its dimensions, in the order of the monomial.

    Where an operand or the result is not finite, or no scaling keeps all factors in range, it is
    summed term by term.
    """
    part = jnp.finfo(dtype).dtype
    given = {
        v: x.astype(jnp.promote_types(x.dtype, part))
        for v, x in zip(of.values, operands, strict=True)
    }
    arrays, suits = _side_products(of, given)
    found = _of_sides(of, arrays).astype(dtype)
    exact = suits & jnp.all(jnp.isfinite(found))
    return lax.cond(
        exact, lambda: found, lambda: sum_by_terms(of.monomial, of.summed, given).astype(dtype)
    )


def _of_sides(of: Contraction, arrays: Sequence[jax.Array]) -> jax.Array:
    total, atoms = _sum(of, arrays[: of.summed_sides])
    for array, side in zip(arrays[of.summed_sides :], of.sides[of.summed_sides :], strict=True):
        both = (*atoms, *(a for a in side if a not in atoms))
        total, atoms = aligned(total, atoms, both) * aligned(array, side, both), both
    kept = tuple(a for a in of.monomial.atoms if a not in of.summed)
    times = math.prod(a.size for a in of.summed if not any(a in side for side in of.sides))
    real = lax.real(total) if of.monomial.real else total
    repeated = filled(aligned(real, atoms, kept), kept)
    return repeated if times == 1 else repeated * times


def _side_products(
    of: Contraction, given: Mapping[Value, jax.Array]
) -> tuple[list[jax.Array], jax.Array]:
    """Each side's product of terms, the first two balanced; and whether nothing was lost."""
    if _is_plain(of):
        return _plain_products(of, given)
    sides: list[Scaled] = []
    finite = jnp.asarray(True)
    for side in of.sides:
        product, is_finite = product_of_terms(_terms_of(side, of), side, given)
        sides.append(product)
        finite &= is_finite
    # What multiplies the sum is at most about 1, so that the sum is lost only where the result is.
    others = [jnp.max(exponent) for _, exponent in sides[2:]]
    first, second = sides[:2]
    second = second[0], second[1] + sum(others)
    balanced, suits = _balanced(first, second, of.sides)
    rest = [(m, e - other) for (m, e), other in zip(sides[2:], others, strict=True)]
    arrays = [
        filled(from_scaled(x), side) for x, side in zip((*balanced, *rest), of.sides, strict=True)
    ]
    return arrays, finite & suits & jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in arrays]))


def _is_plain(of: Contraction) -> bool:
    """Whether it is a function of a product of two arrays: then one exponent for each pair of rows
    will do.
    """
    return len(of.monomial.terms) == 1 and len(of.monomial.factors) == len(of.sides) == 2


def _plain_products(
    of: Contraction, given: Mapping[Value, jax.Array]
) -> tuple[list[jax.Array], jax.Array]:
    (term,) = of.monomial.terms
    factors = [_terms_of(side, of)[0].factors[0] for side in of.sides]
    arrays = [array_of(f, side, given) for f, side in zip(factors, of.sides, strict=True)]
    shared = [a for a in of.sides[0] if a in of.sides[1]]
    dims = [tuple(side.index(a) for a in shared) for side in of.sides]
    ends = [
        (exponent_of(magnitudes(x, d), LOWEST), exponent_of(least_magnitudes(x, d)))
        for x, d in zip(arrays, dims, strict=True)
    ]
    power = 2 ** term.functions.count("square")
    exponent, suits = balance(
        ends[0], ends[1], (float(jnp.finfo(ends[0][0].dtype).maxexp) - 4) / power
    )
    exponents = [
        laid_along(e, x, d) for e, x, d in zip((exponent, -exponent), arrays, dims, strict=True)
    ]
    scaled = [times_power_of_two(x, e) for x, e in zip(arrays, exponents, strict=True)]
    finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in arrays]))
    return [mantissa_of(term.functions, x) for x in scaled], finite & jnp.all(suits)


def _terms_of(side: Atoms, of: Contraction) -> list[Term]:
    """What of each term belongs to a side."""
    own = (
        tuple(f for f in term.factors if _side_of(f, of.sides) == side)
        for term in of.monomial.terms
    )
    return [
        replace(t, factors=factors)
        for t, factors in zip(of.monomial.terms, own, strict=True)
        if factors
    ]


def _side_of(factor: Factor, sides: Sequence[Atoms]) -> Atoms:
    """Each factor belongs to the first side with all its atoms."""
    return next(s for s in sides if set(factor.atoms) <= set(s))


def _balanced(
    one: Scaled, other: Scaled, sides: Sequence[Atoms]
) -> tuple[tuple[Scaled, Scaled], jax.Array]:
    """Two factors of a product, scaled by powers of two that cancel, so that both are in range if
    the product is.
    """
    first, second = sides[:2]
    shared = tuple(a for a in first if a in second)
    ends, others = _ends(one, first, shared), _ends(other, second, shared)
    reach = float(jnp.finfo(ends[0].dtype).maxexp) - 4
    exponent, suits = balance(ends, others, reach)
    raised = one[0], one[1] + aligned(exponent, shared, first)
    lowered = other[0], other[1] - aligned(exponent, shared, second)
    return (raised, lowered), jnp.all(suits)


def _ends(x: Scaled, side: Atoms, shared: Atoms) -> Ends:
    """The largest and least exponents of what is nonzero, by shared atoms, in the first's order."""
    along = [d for d, a in enumerate(side) if a not in shared]
    kept = [a for a in side if a in shared]
    exponent = filled(x[1], side)
    most = jnp.max(exponent, along)
    least = jnp.min(jnp.where(exponent < LOWEST / 2, -LOWEST, exponent), along)
    return aligned(most, kept, shared), aligned(least, kept, shared)


def _sum(of: Contraction, arrays: Sequence[jax.Array]) -> tuple[jax.Array, Atoms]:
    """The sum of a product of one or two arrays over what is summed, and the atoms left."""
    sides = of.sides[: of.summed_sides]
    reduced = [_sum_own(of, x, side, sides) for x, side in zip(arrays, sides, strict=True)]
    if len(reduced) == 1:
        return reduced[0]
    (left, own), (right, others) = reduced
    both = [a for a in own if a in others]
    summed, batch = _split(both, of.summed)
    atoms = (*batch, *(a for a in (*own, *others) if a not in both))
    if not summed:
        return aligned(left, own, atoms) * aligned(right, others, atoms), atoms
    dtype = jnp.promote_types(left.dtype, right.dtype)
    dims = _dims_of(summed, own, others), _dims_of(batch, own, others)
    how = precision(of.monomial.dots[0])
    left, right = left.astype(dtype), right.astype(dtype)
    return lax.dot_general(left, right, dims, how, preferred_element_type=dtype), atoms


def _split(atoms: Sequence[Atom], summed: Container[Atom]) -> tuple[list[Atom], list[Atom]]:
    """Those that are summed, and the others."""
    return [a for a in atoms if a in summed], [a for a in atoms if a not in summed]


def _dims_of(atoms: Sequence[Atom], own: Atoms, others: Atoms) -> tuple[list[int], list[int]]:
    """Where these atoms lie in both factors."""
    return [own.index(a) for a in atoms], [others.index(a) for a in atoms]


def _sum_own(
    of: Contraction, x: jax.Array, side: Atoms, sides: Sequence[Atoms]
) -> tuple[jax.Array, Atoms]:
    """An array summed over what no other side has."""
    alone = [a for a in side if a in of.summed and sum(a in s for s in sides) == 1]
    left = tuple(a for a in side if a not in alone)
    return jnp.sum(x, [side.index(a) for a in alone]) if alone else x, left
