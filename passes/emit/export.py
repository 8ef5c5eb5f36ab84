"""Carry: given a module, a `jax.export.Exported` that runs it, under `jit`, on any platform.

module @f { func @main(%x: tensor<3xf32>) -> tensor<3xf32> }  =>  exported.call(x) -> (y,)

Users' functions: traced with the numerics of who asked, where new code has all 64-bit types.

with jax.enable_x64(True):          new code
    as_asked(fn)(gradient)          jnp.arange(3.0), jax.random.normal: float32, if x64 was off
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.errors import Refusal, reason_at
from hlo_surgery.passes.ir.mlir import Module, stablehlo
from hlo_surgery.passes.ir.modules import called, drop_placement, inline_calls

# Of JAX's options that a `with` may set for one thread, those that numbers rest on: what is drawn
# at random is something else with another default dtype.
NUMERICS = (
    "enable_x64",
    "default_prng_impl",
    "threefry_partitionable",
    "default_matmul_precision",
    "numpy_dtype_promotion",
)
WIDE = frozenset(map(np.dtype, ["i8", "u8", "f8", "c16"]))

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

_asked: ContextVar[Mapping[str, Any] | None] = ContextVar("numerics", default=None)


def asked_numerics() -> Mapping[str, Any]:
    """The options of who asked for this thread's work, or of this thread."""
    asked, config = _asked.get(), jax.config
    return asked or {name: getattr(config, f"jax_{name}") for name in NUMERICS}


def as_asked(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """The function under the options of who asked; with x64 where it is given 64-bit types, which
    would be lost.
    """

    @wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        numerics = dict(asked_numerics())
        numerics["enable_x64"] |= any(map(_is_wide, jax.tree.leaves((args, kwargs))))
        with ExitStack() as options:
            for name, value in numerics.items():
                options.enter_context(getattr(jax, name)(value))
            return function(*args, **kwargs)

    return called


def _is_wide(x: Any) -> bool:
    return getattr(x, "dtype", None) in WIDE


# XLA recurses over nested calls on threads whose stacks end at some 150 of them.
DEEPEST_CALLS = 50

UNDIFFERENTIABLE = (
    "a rewritten function cannot be differentiated: JAX knows no derivative of its module; where "
    "its results count as constants, put jax.lax.stop_gradient around its arguments"
)

ON_ITS_MESH = (
    "call the function that hs.grad or hs.rewrite returns; or compile the module for its devices, "
    "by hs.targets.compile_for with in_shardings on as many"
)

Result = TypeVar("Result")


def in_clean_config(work: Callable[[], Result]) -> Result:
    """Run with x64 and promotion enabled, outside any ambient mesh, trace or default device.

    JAX keeps these per thread. Without x64 the 64-bit types of a module would be lost in tracing;
    what users write is called with their own options, by `export.as_asked`.
    """
    numerics = asked_numerics()

    def isolated() -> Result:
        # Of this thread alone, as all of JAX's.
        _asked.set(numerics)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(isolated).result()


def carry(
    module: Module,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    platform: str,
    *,
    on_mesh: bool = False,
) -> export.Exported:
    """An Exported with this module's code. `inputs`, `outputs`: their avals. It cannot be
    differentiated.

    Sharding constraints are kept where it is to be called `on_mesh`, the one that they name; it
    cannot be saved then.

    It is made from the export of a function of the same signature. Its vjp would be that
    function's, and raises TypeError instead.
    """

    def signature(*_: Any) -> Arrays:
        return tuple(jnp.zeros(aval.shape, aval.dtype) for aval in outputs)

    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in inputs]
    jitted = jax.jit(signature, keep_unused=True)
    template = in_clean_config(lambda: export.export(jitted, platforms=[platform])(*structs))
    return dataclasses.replace(
        template,
        fun_name="hlo_surgery",
        mlir_module_serialized=_on_mesh(module) if on_mesh else portable_artifact(module),
        _get_vjp=_no_derivative,
    )


def anywhere(exported: export.Exported) -> export.Exported:
    """The same, to be lowered for other platforms too, which JAX forbids as code may be for one."""
    checks = (*exported.disabled_safety_checks, export.DisabledSafetyCheck.platform())
    return dataclasses.replace(exported, disabled_safety_checks=checks)


def _no_derivative(_: export.Exported) -> export.Exported:
    raise TypeError(UNDIFFERENTIABLE)


def portable_artifact(module: Module) -> bytes:
    """The module as a StableHLO portable artifact of the version that this jaxlib speaks. Raises
    Refusal where devices run something on their own parts, as they run kernels.
    """
    code = mlir.clone(module)
    ops = mlir.all_operations(code)
    for op in (op for op in ops if op.name == "sdy.manual_computation"):
        why = "each of several devices runs it on its own part, and the module is for one alone"
        raise Refusal(reason_at(op, why, ON_ITS_MESH))
    drop_placement(code, ops)
    _make_plain(code)
    version = stablehlo.get_current_version()
    return stablehlo.serialize_portable_artifact_str(mlir.to_bytecode(code), version)


def _on_mesh(module: Module) -> bytes:
    """As bytecode, since portable artifacts hold no constraints."""
    code = mlir.clone(module)
    _make_plain(code)
    return mlir.to_bytecode(code)


def _make_plain(code: Module) -> None:
    """Make a module in place of what XLA takes: StableHLO, and calls that are not too deep."""
    depths = dict[str, int]()
    for name, calls in called(code).items():
        depths[name] = 1 + max(map(depths.__getitem__, calls), default=0)
    if max(depths.values()) > DEEPEST_CALLS:
        mlir.run_passes(code, "func.func(stablehlo-legalize-composite-to-call)")
        inline_calls(code)
    mlir.run_passes(code, "func.func(chlo-legalize-to-stablehlo)")
