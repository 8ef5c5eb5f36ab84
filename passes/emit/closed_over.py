"""Closed over: a function that reaches for traced values around it, traced with these as arguments.

f(x) = x * c, with c traced outside    =>    f'(x, c') = x * c', to be called on (x, c)

`jax.jit` does so for itself, but hides which values they are. Those that are known stay constants
of the program.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer, eval_jaxpr

from hlo_surgery.passes.ir.mlir import Value

# Traced values by their id, each with the argument of main that stands for it, in the order of
# these.
ClosedOver = dict[int, tuple[Any, Value]]


def trace(function: Callable[..., Any], *structs: jax.ShapeDtypeStruct) -> tuple[Any, list[Any]]:
    """The function traced as by `jax.jit(function).trace`, with further arguments behind; and what
    to pass for them.
    """
    traced: Any = jax.jit(function, keep_unused=True).trace(*structs)
    if len(traced.jaxpr.in_avals) == len(structs):
        return traced, []
    made, results = jax.make_jaxpr(function, return_shape=True)(*structs)
    consts: list[Any] = made.consts
    closed_over = [const for const in consts if isinstance(const, Tracer)]

    def opened(*arrays: Any) -> Any:
        further = iter(arrays[len(structs) :])
        known = [next(further) if isinstance(const, Tracer) else const for const in consts]
        outputs: Any = eval_jaxpr(made.jaxpr, known, *arrays[: len(structs)])
        return jax.tree.unflatten(jax.tree.structure(results), outputs)

    kinds = [_struct(const) for const in closed_over]
    return jax.jit(opened, keep_unused=True).trace(*structs, *kinds), closed_over


def _struct(value: Any) -> jax.ShapeDtypeStruct:
    kind: Any = jax.typeof(value)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)
