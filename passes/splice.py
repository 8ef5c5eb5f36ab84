"""Splice: given values of a module and a JAX function of them, its ops at the end of `main`, and its results as values.

return %g                 =>   %s = multiply %g, %g      (lowered from lambda g: g * g)
                               return %g
"""

from collections.abc import Callable, Sequence

import jax

from hlo_surgery import mlir
from hlo_surgery.mlir import Module, Value
from hlo_surgery.passes.carry import in_clean_config
from hlo_surgery.passes.element_types import dtype_of
from hlo_surgery.passes.normalize import inline_calls, move_body

Replacement = Callable[..., Sequence[jax.Array]]


def splice(module: Module, values: Sequence[Value], replacement: Replacement) -> list[Value]:
    """Trace and lower `replacement` once, and move its ops in front of main's return."""
    structs = [jax.ShapeDtypeStruct(mlir.shape(v), dtype_of(v)) for v in values]
    jitted = jax.jit(replacement, keep_unused=True)
    text = in_clean_config(lambda: jitted.lower(*structs).as_text())
    lowered = mlir.parse(text)
    inline_calls(lowered)
    end = mlir.return_operation(mlir.body(mlir.main_function(module)))
    return move_body(mlir.main_function(lowered), list(values), end)
