"""Evaluated terms: a term as an array, of the values that it is made of."""

import jax

from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners.following.terms import Term

Known = dict[Term | Value, jax.Array]


def evaluated(x: Term | Value, known: Known) -> jax.Array:
    """The array of a term, which is `known` from here on, with all that it is made of."""
    if x not in known:
        assert isinstance(x, Term)
        known[x] = x.made(*(evaluated(y, known) for y in x.inputs))
    return known[x]
