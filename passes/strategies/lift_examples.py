"""Lift: the gradients of all examples at once, [B, *parameter], by `vmap` of the slice function.

%g = dot_general %h[b, d], %l[b, f] over b  =>  %G[b, d, f]
                                                statistic = mean of phi(%G) over b
                                                %g = mean of %G
"""

from collections.abc import Mapping

import jax

from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.terms.slice_functions import SliceFunction, over_examples


def lifted_gradients(
    function: SliceFunction, known: Mapping[Value, jax.Array], size: int
) -> jax.Array:
    """[B, *parameter]: every example's gradient."""
    return over_examples(function, known, size, function.of_one)
