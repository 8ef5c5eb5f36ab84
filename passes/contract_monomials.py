"""Contract monomials: the sum of a monomial over some of its indices, with no array that has all of them.

    sum_b (h[b, d] l[b, f] w[d, f])**2    =>    (sum_b h[b, d]**2 l[b, f]**2) w[d, f]**2

The factors fall into sides, by the indices that they have. One or two sides have indices that are summed: two are
contracted as the outer product was made, in its precision; the others multiply the result.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.mlir import Value
from hlo_surgery.passes.binary_exponents import exponent_of, times_power_of_two
from hlo_surgery.passes.monomials import Atoms, Factor, Monomial, Term
from hlo_surgery.passes.raising_attributes import precision

FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "square": lambda x: x * x,
    "abs": jnp.abs,
    "sign": lax.sign,
    "conj": jnp.conj,
}


@dataclass(frozen=True)
class Contraction:
    """The sum of a monomial over atoms. `sides`: the atoms of each side; of the first `summed_sides`, some summed."""

    monomial: Monomial
    summed: Atoms
    sides: tuple[Atoms, ...]
    summed_sides: int

    @property
    def values(self) -> list[Value]:
        """What it is computed from."""
        return list(dict.fromkeys(factor.value for factor in self.monomial.factors))


def contraction(monomial: Monomial, summed: Atoms) -> Contraction | None:
    """The sum as a contraction; None where an array would be as large as the outer product, or there is none."""
    held = list(dict.fromkeys(frozenset(factor.atoms) for factor in monomial.factors))
    largest = [tuple(a for a in monomial.atoms if a in atoms) for atoms in held if not any(atoms < o for o in held)]
    contracted = [side for side in largest if set(side) & set(summed)]
    others = [side for side in largest if side not in contracted]
    alike = len({precision(dot) for dot in monomial.dots}) == 1
    if not alike or len(contracted) not in (1, 2) or len(largest) < 2:
        return None
    return Contraction(monomial, summed, (*contracted, *others), len(contracted))


def contract(of: Contraction, operands: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
    """The sum, with the atoms that are left as its dimensions, in the order of the monomial."""
    part = jnp.finfo(dtype).dtype
    given = {v: x.astype(jnp.promote_types(x.dtype, part)) for v, x in zip(of.values, operands, strict=True)}
    arrays = _side_products(of, given)
    total, atoms = _sum(of, arrays[: of.summed_sides])
    for array, side in zip(arrays[of.summed_sides :], of.sides[of.summed_sides :], strict=True):
        both = (*atoms, *(a for a in side if a not in atoms))
        total, atoms = _aligned(total, atoms, both) * _aligned(array, side, both), both
    kept = tuple(a for a in of.monomial.atoms if a not in of.summed)
    times = math.prod(a.size for a in of.summed if not any(a in side for side in of.sides))
    real = lax.real(total) if of.monomial.real else total
    repeated = _filled(_aligned(real, atoms, kept), kept).astype(dtype)
    return repeated if times == 1 else repeated * times


def _side_products(of: Contraction, given: Mapping[Value, jax.Array]) -> list[jax.Array]:
    """The product of all terms on each side."""
    terms = of.monomial.terms
    is_power = any("square" in term.functions for term in terms) or len(of.values) < len(of.monomial.factors)
    products: list[list[jax.Array]] = [[] for _ in of.sides]
    for term in terms:
        bases = [_base(term, side, of.sides, given) for side in of.sides]
        if is_power:
            bases[:2] = _balanced(bases[0], bases[1], of.sides)
        for found, base in zip(products, bases, strict=True):
            found += [] if base is None else [_of(term.functions, base)]
    sides = zip(products, of.sides, strict=True)
    return [_filled(functools.reduce(operator.mul, found), side) for found, side in sides]


def _of(functions: Sequence[str], x: jax.Array) -> jax.Array:
    for name in functions:
        x = FUNCTIONS[name](x)
    return x


def _base(term: Term, side: Atoms, sides: Sequence[Atoms], given: Mapping[Value, jax.Array]) -> jax.Array | None:
    """What of a term belongs to a side: each factor to the first side with all its atoms."""
    own = [f for f in term.factors if next(s for s in sides if set(f.atoms) <= set(s)) == side]
    if not own:
        return None
    product = jnp.ones((), given[own[0].value].dtype)
    for i, factor in enumerate(sorted(own, key=lambda f: f.inverted)):
        x = _array(factor, side, given)
        product = product / x if factor.inverted else x if i == 0 else product * x
    return product


def _array(factor: Factor, side: Atoms, given: Mapping[Value, jax.Array]) -> jax.Array:
    return _aligned(given[factor.value].reshape(_sizes(factor.atoms)), factor.atoms, side)


def _balanced(
    one: jax.Array | None, other: jax.Array | None, sides: Sequence[Atoms]
) -> tuple[jax.Array | None, jax.Array | None]:
    """Two factors of a product, scaled by powers of two that cancel, so that the first is near 1.

    Else the square of one factor could underflow or overflow where that of the product does neither.
    """
    if one is None or other is None:
        return one, other
    first, second = sides[:2]
    shared = tuple(a for a in first if a in second)
    one = _filled(one, first)
    largest = jnp.max(jnp.abs(one), [d for d, a in enumerate(first) if a not in shared])
    exponent = exponent_of(largest)
    scaled = times_power_of_two(one, -_aligned(exponent, shared, first))
    return scaled, times_power_of_two(other, _aligned(exponent, shared, second))


def _sum(of: Contraction, arrays: Sequence[jax.Array]) -> tuple[jax.Array, Atoms]:
    """The sum of the product of one or two arrays over what is summed, and the atoms that are left."""
    sides = of.sides[: of.summed_sides]
    reduced = [_sum_own(of, x, side, sides) for x, side in zip(arrays, sides, strict=True)]
    if len(reduced) == 1:
        return reduced[0]
    (left, own), (right, others) = reduced
    contracted = [a for a in own if a in others and a in of.summed]
    batch = [a for a in own if a in others and a not in of.summed]
    atoms = (*batch, *(a for a in (*own, *others) if (a in own) != (a in others)))
    if not contracted:
        return _aligned(left, own, atoms) * _aligned(right, others, atoms), atoms
    dtype = jnp.promote_types(left.dtype, right.dtype)
    over, along = (([own.index(a) for a in both], [others.index(a) for a in both]) for both in (contracted, batch))
    how = precision(of.monomial.dots[0])
    left, right = left.astype(dtype), right.astype(dtype)
    return lax.dot_general(left, right, (over, along), how, preferred_element_type=dtype), atoms


def _sum_own(of: Contraction, x: jax.Array, side: Atoms, sides: Sequence[Atoms]) -> tuple[jax.Array, Atoms]:
    """An array summed over what no other side has."""
    alone = [a for a in side if a in of.summed and sum(a in s for s in sides) == 1]
    left = tuple(a for a in side if a not in alone)
    return jnp.sum(x, [side.index(a) for a in alone]) if alone else x, left


def _aligned(x: jax.Array, own: Sequence[object], target: Sequence[object]) -> jax.Array:
    """The array with its dimensions in the order of the target, and of size 1 where it has none."""
    order = [own.index(a) for a in target if a in own]
    sizes = iter([x.shape[d] for d in order])
    return x.transpose(order).reshape([next(sizes) if a in own else 1 for a in target])


def _filled(x: jax.Array, atoms: Atoms) -> jax.Array:
    return x if x.shape == _sizes(atoms) else jnp.broadcast_to(x, _sizes(atoms))


def _sizes(atoms: Atoms) -> tuple[int, ...]:
    return tuple(a.size for a in atoms)
