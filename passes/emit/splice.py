"""Splice: given a block's values and a JAX function of them, its ops before an op, and its results.

return %g                 =>   %s = multiply %g, %g      (lowered from lambda g: g * g)
                               return %g
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from hlo_surgery.passes.emit.closed_over import ClosedOver, trace
from hlo_surgery.passes.emit.export import in_clean_config
from hlo_surgery.passes.emit.host_calls import host_calls
from hlo_surgery.passes.emit.main_signature import add_argument
from hlo_surgery.passes.emit.scopes import Scope, keep_names_alone, set_traced_scopes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.inlining import inline_calls, move_body
from hlo_surgery.passes.ir.mlir import Operation, Value, ir, stablehlo

TELLING = (
    "a statistic calls its host (as jax.debug.print and jax.pure_callback do), which a rewritten "
    "module cannot; print what f returns instead"
)

Replacement = Callable[..., Sequence[jax.Array]]
CONVERT, FLOATS = "stablehlo.convert", {np.dtype(np.float32), np.dtype(np.float64)}


def splice(
    values: Sequence[Value],
    replacement: Replacement,
    before: Operation,
    source: Operation | None = None,
    closed_over: ClosedOver | None = None,
    scope: Scope | None = None,
    sources: Mapping[str, Operation] | None = None,
    platform: str | None = None,
) -> list[Value]:
    """Trace `replacement` and move its ops in front of `before`. They stand for `source`, or, as
    far as they are for one output, for its op in `sources`, and take its source line; `scope` says
    what they are added for. `platform`: which alone they are for, as kernels are.

    Traced values that it closes over become arguments of main, where `closed_over` keeps count of
    them. Raises ValueError where it calls its host.
    """
    structs = [jax.ShapeDtypeStruct(mlir.shape(v), dtype_of(v)) for v in values]
    code, tracers = in_clean_config(lambda: _lowered(replacement, structs, platform))
    lowered = mlir.parse(code)
    mlir.run_passes(lowered, "func.func(chlo-legalize-to-stablehlo)")
    keep_names_alone(mlir.all_operations(lowered))
    inline_calls(lowered)
    _narrow_constants(lowered)
    ops = mlir.nested_operations(mlir.main_function(lowered).operation)
    stands_for = source or before
    if scope is None:
        for op in ops:
            cast(Any, op).location = stands_for.location
    else:
        set_traced_scopes(ops, scope, sources or {}, stands_for)
    further = _further_arguments(lowered, tracers, before, closed_over)
    return move_body(mlir.main_function(lowered), [*values, *further], before)


def _narrow_constants(module: mlir.Module) -> None:
    """Have numbers of Python in the type that they are converted to: as JAX has 64 bits here, they
    are of these, which not every device has.
    """
    for op in mlir.all_operations(module):
        source = mlir.defining_operation(op.operands[0]) if op.name == CONVERT else None
        if source is None or source.name != "stablehlo.constant" or mlir.shape(op.results[0]):
            continue
        dtypes = {dtype_of(op.operands[0]), dtype_of(op.results[0])}
        if dtypes <= FLOATS:
            number = elements(source).astype(dtype_of(op.results[0]))
            with mlir.context(), op.location, ir.InsertionPoint(op):
                made = stablehlo.constant(cast(Any, ir.DenseElementsAttr).get(number))
            mlir.replace(op, [cast(Value, made)])


def _lowered(
    replacement: Replacement, structs: Sequence[jax.ShapeDtypeStruct], platform: str | None
) -> tuple[bytes, list[Any]]:
    traced, tracers = trace(replacement, *structs)
    # All that is spliced is ours, but for what statistics are made of.
    if host_calls(traced.jaxpr.jaxpr):
        raise ValueError(TELLING)
    platforms = None if platform is None else (platform,)
    return mlir.to_bytecode(traced.lower(lowering_platforms=platforms).compiler_ir()), tracers


def _further_arguments(
    lowered: mlir.Module, tracers: Sequence[Any], before: Operation, closed_over: ClosedOver | None
) -> list[Value]:
    """The argument of main for each traced value, one for each value however often it is met."""
    if not tracers:
        return []
    assert closed_over is not None, (
        "only statistics are the user's, and may close over traced values"
    )
    main, parameters = (
        mlir.enclosing_function(before),
        mlir.body(mlir.main_function(lowered)).arguments,
    )
    for tracer, parameter in zip(tracers, list(parameters)[-len(tracers) :], strict=True):
        if id(tracer) not in closed_over:
            closed_over[id(tracer)] = tracer, add_argument(main, parameter.type)
    return [closed_over[id(tracer)][1] for tracer in tracers]
