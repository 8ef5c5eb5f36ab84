"""Splice: given values of a block and a JAX function of them, its ops in front of an op, and its results as values.

return %g                 =>   %s = multiply %g, %g      (lowered from lambda g: g * g)
                               return %g
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from hlo_surgery import mlir
from hlo_surgery.mlir import Operation, Value
from hlo_surgery.passes.carry import in_clean_config
from hlo_surgery.passes.element_types import dtype_of
from hlo_surgery.passes.inlining import inline_calls, move_body

Replacement = Callable[..., Sequence[jax.Array]]


def splice(
    values: Sequence[Value], replacement: Replacement, before: Operation, source: Operation | None = None
) -> list[Value]:
    """Trace and lower `replacement` once, and move its ops in front of `before`.

    They stand for the op `source`, and take its source line.
    """
    structs = [jax.ShapeDtypeStruct(mlir.shape(v), dtype_of(v)) for v in values]
    jitted = jax.jit(replacement, keep_unused=True)
    lowered = mlir.parse(in_clean_config(lambda: jitted.lower(*structs).as_text()))
    mlir.run_passes(lowered, "func.func(chlo-legalize-to-stablehlo)")
    inline_calls(lowered)
    for op in mlir.nested_operations(mlir.main_function(lowered).operation):
        cast(Any, op).location = (source or before).location
    return move_body(mlir.main_function(lowered), list(values), before)
