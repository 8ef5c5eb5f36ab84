"""Monomial products: a monomial's elements as m * 2**e, in range in any order of multiplying."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.terms.monomials.binary_exponents import (
    LOWEST,
    Scaled,
    as_scaled,
    from_scaled,
    inverse_of,
    product_of,
)
from hlo_surgery.passes.terms.monomials.monomials import Atom, Atoms, Factor, Monomial, Term

Given = Mapping[Value, jax.Array]

FUNCTIONS: dict[str, Callable[[Scaled], Scaled]] = {
    "square": lambda x: (x[0] * x[0], 2 * x[1]),
    "abs": lambda x: (jnp.abs(x[0]), x[1]),
    "sign": lambda x: (lax.sign(x[0]), jnp.where(x[1] < LOWEST / 2, LOWEST, 0)),
    "conj": lambda x: (jnp.conj(x[0]), x[1]),
}


def product_of_terms(terms: Sequence[Term], atoms: Atoms, given: Given) -> tuple[Scaled, jax.Array]:
    """The product of terms, its dimensions these atoms, and whether all in it is finite."""
    found: list[Scaled] = []
    finite = jnp.asarray(True)
    for term in terms:
        product = product_of([_scaled(factor, atoms, given) for factor in term.factors])
        finite &= jnp.all(jnp.isfinite(product[0]))
        for name in term.functions:
            product = FUNCTIONS[name](product)
        found.append(product)
    return product_of(found), finite


def _scaled(factor: Factor, atoms: Atoms, given: Given) -> Scaled:
    x = as_scaled(array_of(factor, atoms, given))
    return inverse_of(x) if factor.inverted else x


def array_of(factor: Factor, atoms: Atoms, given: Given) -> jax.Array:
    """A factor's value, its dimensions these atoms."""
    return aligned(given[factor.value].reshape(_sizes(factor.atoms)), factor.atoms, atoms)


def mantissa_of(functions: Sequence[str], x: jax.Array) -> jax.Array:
    """Functions, in order, of numbers as they are."""
    found = x, jnp.zeros((), x.real.dtype)
    for name in functions:
        found = FUNCTIONS[name](found)
    return found[0]


def sum_by_terms(of: Monomial, summed: Atoms, given: Given) -> jax.Array:
    """The sum over some atoms, which holds one slice along the largest of them at a time."""
    along = max(summed, key=lambda atom: atom.size)
    rest = tuple(a for a in of.atoms if a is not along)
    shapes = {f: f.atoms for f in of.factors}

    def slice_at(number: jax.Array) -> jax.Array:
        taken = {
            f: _taken(given[f.value].reshape(_sizes(a)), a, along, number)
            for f, a in shapes.items()
        }
        found: list[Scaled] = []
        for term in of.terms:
            product = product_of([_taken_scaled(f, taken[f], along, rest) for f in term.factors])
            for name in term.functions:
                product = FUNCTIONS[name](product)
            found.append(product)
        whole = filled(from_scaled(product_of(found)), rest)
        each = lax.real(whole) if of.real else whole
        return jnp.sum(each, [d for d, a in enumerate(rest) if a in summed])

    first = slice_at(jnp.int32(0))
    return lax.fori_loop(
        1, along.size, lambda i, total: total + slice_at(jnp.asarray(i, jnp.int32)), first
    )


def _taken(x: jax.Array, atoms: Atoms, along: Atom, number: jax.Array) -> jax.Array:
    return (
        lax.dynamic_index_in_dim(x, number, atoms.index(along), keepdims=False)
        if along in atoms
        else x
    )


def _taken_scaled(factor: Factor, x: jax.Array, along: Atom, rest: Atoms) -> Scaled:
    scaled = as_scaled(aligned(x, [a for a in factor.atoms if a is not along], rest))
    return inverse_of(scaled) if factor.inverted else scaled


def aligned(x: jax.Array, own: Sequence[object], target: Sequence[object]) -> jax.Array:
    """The array with its dimensions in the order of the target, and of size 1 where it has none."""
    order = [own.index(a) for a in target if a in own]
    sizes = iter([x.shape[d] for d in order])
    return x.transpose(order).reshape([next(sizes) if a in own else 1 for a in target])


def filled(x: jax.Array, atoms: Atoms) -> jax.Array:
    """Repeated along the atoms of which it has size 1."""
    return x if x.shape == _sizes(atoms) else jnp.broadcast_to(x, _sizes(atoms))


def _sizes(atoms: Atoms) -> tuple[int, ...]:
    return tuple(a.size for a in atoms)
