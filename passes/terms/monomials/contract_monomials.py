"""Contract monomials: a monomial's sum over some of its indices, with no array that has them all.

    sum_b (h[b, d] l[b, f] w[d, f])**2    =>    (sum_b h[b, d]**2 l[b, f]**2) w[d, f]**2

The factors fall into sides, by the indices that they have. One or two sides have indices that are
summed: two are contracted as the outer product was made, in its precision; the others multiply the
result.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.ir.attributes import precision
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.terms.monomials.binary_exponents import (
    Scaled,
    as_scaled,
    exponent_of,
    from_scaled,
    inverse_of,
    product_of,
    times_power_of_two,
)
from hlo_surgery.passes.terms.monomials.monomials import Atoms, Factor, Monomial, Term

Given = Mapping[Value, jax.Array]

FUNCTIONS: dict[str, Callable[[Scaled], Scaled]] = {
    "square": lambda x: (x[0] * x[0], 2 * x[1]),
    "abs": lambda x: (jnp.abs(x[0]), x[1]),
    "sign": lambda x: (lax.sign(x[0]), jnp.zeros_like(x[1])),
}


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

    Where an operand or the result is not finite, or what was lost of a side may count, it is summed
    slice by slice.
    """
    given = {
        v: x.astype(jnp.promote_types(x.dtype, dtype))
        for v, x in zip(of.values, operands, strict=True)
    }
    arrays, suits = _scaled_sides(of, given)
    found = _of_sides(of, arrays).astype(dtype)
    exact = suits & _is_finite([found])
    return lax.cond(exact, lambda: found, lambda: _slice_by_slice(of, given).astype(dtype))


def _scaled_sides(of: Contraction, given: Given) -> tuple[list[jax.Array], jax.Array]:
    """Each side's product, of which none but the first has an element beyond 1; and whether nothing
    was lost that counts: what the first loses does not, nor do others if it has none either.
    """
    sides = [_scaled_side(of, side, given) for side in of.sides]
    exponent = reduce(operator.add, [exponent for (_, exponent), _ in sides])
    first, *others = [mantissa for (mantissa, _), _ in sides]
    arrays = [from_scaled((first, exponent)), *others]
    is_kept = jnp.all(jnp.stack([kept for _, kept in sides]))
    suits = is_kept | (jnp.max(jnp.abs(arrays[0]), initial=0) <= 1)
    return arrays, suits & _is_finite([*given.values(), *arrays])


def _is_finite(arrays: Sequence[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in arrays]))


def _scaled_side(of: Contraction, side: Atoms, given: Given) -> tuple[Scaled, jax.Array]:
    """A side's product with one exponent for all, and whether no element left the range."""
    own = [f for f in of.monomial.factors if _side_of(f, of.sides) == side]
    arrays = {f: _inverted_if(f, _array_of(f, side, given)) for f in own}
    mantissa, exponent = _product(of.monomial.terms, {f: _as_one(x) for f, x in arrays.items()})
    is_zero = reduce(operator.or_, [x == 0 for x in arrays.values()])
    is_normal = jnp.abs(mantissa) >= jnp.finfo(mantissa.dtype).tiny
    return (mantissa, exponent), jnp.all(is_zero | is_normal)


def _side_of(factor: Factor, sides: Sequence[Atoms]) -> Atoms:
    """Each factor belongs to the first side with all its atoms."""
    return next(s for s in sides if set(factor.atoms) <= set(s))


def _inverted_if(factor: Factor, x: jax.Array) -> jax.Array:
    """The factor; of an inverse that may have been flushed to zero, NaN."""
    if not factor.inverted:
        return x
    inverse = 1 / x
    return jnp.where(jnp.abs(inverse) < jnp.finfo(x.dtype).tiny, jnp.nan, inverse)


def _as_one(x: jax.Array) -> Scaled:
    """An array as m * 2**e with one e, and no m beyond 1."""
    exponent = exponent_of(jnp.max(jnp.abs(x), initial=0)) + 1
    return times_power_of_two(x, -exponent), exponent


def _product(terms: Sequence[Term], known: Mapping[Factor, Scaled]) -> Scaled:
    """The product of terms, of the factors that are known."""
    found: list[Scaled] = []
    for term in terms:
        if own := [known[factor] for factor in term.factors if factor in known]:
            product = product_of(own)
            for name in term.functions:
                product = FUNCTIONS[name](product)
            found.append(product)
    return product_of(found)


def _of_sides(of: Contraction, arrays: Sequence[jax.Array]) -> jax.Array:
    """The contraction of the sides that have what is summed, times the others."""
    monomial, summed = of.monomial, of.summed
    kept = tuple(a for a in monomial.atoms if a not in summed)
    held = [a for a in kept if any(a in side for side in of.sides[: of.summed_sides])]
    numbers = {atom: number for number, atom in enumerate(monomial.atoms)}
    operands: list[object] = []
    for array, side in zip(arrays[: of.summed_sides], of.sides, strict=False):
        operands += [array, [numbers[a] for a in side]]
    how = precision(monomial.dots[0])
    total = jnp.einsum(*operands, [numbers[a] for a in held], precision=how)  # pyright: ignore
    total = _aligned(total, held, kept)
    for array, side in zip(arrays[of.summed_sides :], of.sides[of.summed_sides :], strict=True):
        total = total * _aligned(array, side, kept)
    times = math.prod(a.size for a in summed if not any(a in side for side in of.sides))
    repeated = jnp.broadcast_to(total, [a.size for a in kept])
    return repeated if times == 1 else repeated * times


def _slice_by_slice(of: Contraction, given: Given) -> jax.Array:
    """The sum, which holds one slice along the largest of what is summed at a time."""
    along = max(of.summed, key=lambda atom: atom.size)
    rest = tuple(a for a in of.monomial.atoms if a is not along)

    def taken(factor: Factor, number: jax.Array | int) -> Scaled:
        whole = _array_of(factor, (along, *rest), given)
        own = lax.dynamic_index_in_dim(whole, number if along in factor.atoms else 0, 0, False)
        return inverse_of(as_scaled(own)) if factor.inverted else as_scaled(own)

    def slice_at(number: jax.Array | int) -> jax.Array:
        known = {factor: taken(factor, number) for factor in of.monomial.factors}
        each = from_scaled(_product(of.monomial.terms, known))
        whole = jnp.broadcast_to(each, [a.size for a in rest])
        return jnp.sum(whole, [d for d, a in enumerate(rest) if a in of.summed])

    return lax.fori_loop(1, along.size, lambda i, total: total + slice_at(i), slice_at(0))


def _array_of(factor: Factor, atoms: Atoms, given: Given) -> jax.Array:
    """A factor's value, its dimensions these atoms."""
    own = given[factor.value].reshape([a.size for a in factor.atoms])
    return _aligned(own, factor.atoms, atoms)


def _aligned(x: jax.Array, own: Sequence[object], target: Sequence[object]) -> jax.Array:
    """The array with its dimensions in the order of the target, and of size 1 where it has none."""
    order = [own.index(a) for a in target if a in own]
    sizes = iter([x.shape[d] for d in order])
    return x.transpose(order).reshape([next(sizes) if a in own else 1 for a in target])
