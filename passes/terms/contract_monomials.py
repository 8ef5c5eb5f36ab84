"""Contract monomials: a monomial's sum over some of its indices, with no array that has them all.

    sum_b (3 h[b, d] l[b, f])**2    =>    sum_b (9 h[b, d]**2) l[b, f]**2

contracted as the outer product was made, in its precision.

Balanced factors: scaled against each other before phi, with phi(x y) = phi(x) phi(y), of both.

phi(x y) = phi(2**e x) phi(2**-e y), but for another e phi of a factor may be 0 or inf where that of
the product is not.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import chain

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.mlir import Operation, Values
from hlo_surgery.passes.ir.traits import precision
from hlo_surgery.passes.structure.digits import Digits, leaves
from hlo_surgery.passes.terms.epilogue import Phi
from hlo_surgery.passes.terms.monomials import (
    Dims,
    Functions,
    Monomial,
    laid_along,
    magnitudes,
)
from hlo_surgery.passes.terms.scaling import near_power_of_two, or_one, raised


def balanced(
    lhs: Array,
    rhs: Array,
    dims: tuple[Dims, Dims],
    phi: Phi,
    power: Array | float = 0,
) -> tuple[Array, Array]:
    """The factors of a contraction, of which phi is taken; their product times 2**power.

    The largest elements of both are made alike, the root of the largest product: phi of it is as
    far from the end of the range as phi of what it is lost beside from the other. Where one has no
    largest number and the other is zero, the latter is NaN, as their product may be.
    """
    own, other = dims
    largest = magnitudes(lhs, own), magnitudes(rhs, other)
    most, other_most = map(or_one, largest)
    by = near_power_of_two(jnp.sqrt(other_most) / jnp.sqrt(most))
    half, zero = power // 2, jnp.zeros((), lhs.dtype)
    first = raised(lhs * laid_along(by, lhs, own), half)
    second = raised(rhs * laid_along(1 / by, rhs, other), power - half)
    hides_nan = ~jnp.isnan(phi(zero + jnp.inf) * phi(zero))

    def spoilt(x: Array, beside: Array, dims: Dims) -> Array:
        is_spoilt = hides_nan & ~laid_along(beside < jnp.inf, x, dims) & (x == 0)
        return jnp.where(is_spoilt, jnp.asarray(jnp.nan, x.dtype), x)

    return spoilt(first, largest[1], own), spoilt(second, largest[0], other)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "square": lax.square,
    "abs": jnp.abs,
    "sign": lax.sign,
}


@dataclass(frozen=True)
class Contraction:
    """The sum of a monomial of an outer product, which `dot` makes, over digits."""

    monomial: Monomial
    dot: Operation
    summed: Digits

    @property
    def values(self) -> Values:
        """What it is computed from: both factors, and numbers."""
        return [*self.dot.operands, *(value for value, _ in self.monomial.numbers)]

    @property
    def digits(self) -> Digits:
        """All indices, in row-major order."""
        return leaves(chain(*self.monomial.dims))

    @property
    def sides(self) -> list[Digits]:
        """Those of both factors."""
        return [leaves(side) for side in self.monomial.sides]


def contract(of: Contraction, operands: Arrays, dtype: np.dtype) -> Array:
    """The sum, with the digits that are left as its dimensions, in the order of the monomial.

    Where an operand or the result is not finite, or what was lost of a factor may count, it is
    summed slice by slice.
    """
    first, second, *numbers = [x.astype(dtype) for x in operands]
    pairs = zip((first, second), of.sides, strict=True)
    sides = [x.reshape([digit.size for digit in side]) for x, side in pairs]
    scale = _number(of, [*numbers, jnp.ones((), dtype)])
    arrays, suits = _scaled_sides(of, sides, scale)
    found = _contracted(of, arrays).astype(dtype)
    all_finite = [jnp.all(jnp.isfinite(x)) for x in [first, second, *numbers, *arrays, found]]
    exact = suits & jnp.all(jnp.stack(all_finite))
    return lax.cond(exact, lambda: found, lambda: _slice_by_slice(of, sides, scale).astype(dtype))


def _number(of: Contraction, numbers: Arrays) -> Array:
    """The product of all numbers, and of what is behind them, in float64."""
    functions = [*(own for _, own in of.monomial.numbers), ()]
    pairs = zip(functions, numbers, strict=True)
    wide = [_applied(own, x.ravel()[0].astype(jnp.float64)) for own, x in pairs]
    return reduce(operator.mul, wide)


def _applied(functions: Functions, to: Array) -> Array:
    return reduce(lambda x, name: FUNCTIONS[name](x), functions, to)


def _powers(of: Contraction, x: Array) -> Array:
    """All terms of one factor of the outer product, or of their product."""
    return reduce(operator.mul, (_applied(functions, x) for functions in of.monomial.terms))


def _scaled_sides(of: Contraction, sides: Arrays, scale: Array) -> tuple[Arrays, Array]:
    """Both factors' terms, of which the second has no element beyond 1; and whether nothing was
    lost that counts: only a sign does where the first has none beyond 1 either.
    """
    most = [2 * near_power_of_two(jnp.max(jnp.abs(x), initial=0)) for x in sides]
    one, other = (_powers(of, x / m) for x, m in zip(sides, most, strict=True))
    behind = _powers(of, most[0].astype(jnp.float64) * most[1]) * scale
    first = (one * behind).astype(one.dtype)
    has_sign = any("sign" in functions for functions in of.monomial.terms)
    is_small = (jnp.max(jnp.abs(first), initial=0) <= 1) & (not has_sign)
    is_kept = _is_kept(sides[0], one) & _is_kept(sides[1], other)
    return [first, other], is_kept | is_small


def _is_kept(x: Array, powers: Array) -> Array:
    """Whether all powers are normal numbers but those of zeros."""
    return jnp.all((x == 0) | (jnp.abs(powers) >= jnp.finfo(powers.dtype).tiny))


def _contracted(of: Contraction, arrays: Arrays) -> Array:
    numbers = {digit: number for number, digit in enumerate(of.digits)}
    kept = [number for digit, number in numbers.items() if digit not in of.summed]
    first, second = ([numbers[digit] for digit in side] for side in of.sides)
    how = precision(of.dot)
    return jnp.einsum(arrays[0], first, arrays[1], second, kept, precision=how)  # pyright: ignore


def _slice_by_slice(of: Contraction, sides: Arrays, scale: Array) -> Array:
    """The sum, which holds one slice along the largest of what is summed at a time."""
    along = max(of.summed, key=lambda digit: digit.size)
    rest = [digit for digit in of.digits if digit is not along]
    pairs = zip(sides, of.sides, strict=True)
    whole = [_aligned(x, side, [along, *rest]) for x, side in pairs]

    def slice_at(number: Array | int) -> Array:
        at = [number if len(x) > 1 else 0 for x in whole]
        pairs = zip(whole, at, strict=True)
        one, other = (lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x, i in pairs)
        each = _powers(of, one.astype(jnp.float64) * other) * scale
        return jnp.sum(each, [d for d, digit in enumerate(rest) if digit in of.summed])

    return lax.fori_loop(1, along.size, lambda i, total: total + slice_at(i), slice_at(0))


def _aligned(x: Array, own: Digits, target: Digits) -> Array:
    """The array with its dimensions in the order of the target, and of size 1 where it has none."""
    ordered = x.transpose([own.index(digit) for digit in target if digit in own])
    return ordered.reshape([digit.size if digit in own else 1 for digit in target])
