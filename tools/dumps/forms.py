"""The forms of gradient modules in JAX: text, bytecode, portable artifact, `jax.export` artifact.

Each function takes a model and its arguments, the parameters first, and returns a file's extension
and content. They keep to what jax has had since 0.4.30.
"""

import io
from typing import Any

import jax
from jax import export

from tools.models.dumped import DumpModel

Arguments = tuple[Any, ...]
File = tuple[str, bytes]


def gradient(model: DumpModel) -> Any:
    return jax.grad(model.loss)


def text(lowered: Any, debug: bool = True) -> File:
    asm = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=debug)
    return "mlir", asm.encode()


def artifact(jitted: Any, arguments: Arguments, platforms: tuple[str, ...] = ("cpu",)) -> File:
    return "jax_export", bytes(export.export(jitted, platforms=platforms)(*arguments).serialize())


def jitted_gradient(model: DumpModel, **options: Any) -> Any:
    return jax.jit(gradient(model), keep_unused=True, **options)


def as_text(model: DumpModel, arguments: Arguments) -> File:
    return text(jitted_gradient(model).lower(*arguments))


def as_bare_text(model: DumpModel, arguments: Arguments) -> File:
    """Without source locations."""
    return text(jitted_gradient(model).lower(*arguments), debug=False)


def as_donating_text(model: DumpModel, arguments: Arguments) -> File:
    """The parameters are donated."""
    return text(jitted_gradient(model, donate_argnums=(0,)).lower(*arguments))


def as_bytecode(model: DumpModel, arguments: Arguments) -> File:
    buffer = io.BytesIO()
    jitted_gradient(model).lower(*arguments).compiler_ir("stablehlo").operation.write_bytecode(
        buffer
    )
    return "mlirbc", buffer.getvalue()


def as_portable_artifact(model: DumpModel, arguments: Arguments) -> File:
    exported = export.export(jitted_gradient(model), platforms=("cpu",))(*arguments)
    return "vhlo", bytes(exported.mlir_module_serialized)


def as_export(model: DumpModel, arguments: Arguments) -> File:
    return artifact(jitted_gradient(model), arguments)


def as_export_for_tpu(model: DumpModel, arguments: Arguments) -> File:
    return artifact(jitted_gradient(model), arguments, ("cpu", "tpu"))


def as_export_for_cuda(model: DumpModel, arguments: Arguments) -> File:
    return artifact(jitted_gradient(model), arguments, ("cpu", "cuda"))


def as_symbolic_export(model: DumpModel, arguments: Arguments) -> File:
    """The number of examples is left open."""
    parameters, *inputs = arguments
    scope = export.SymbolicScope()
    shapes = [
        jax.ShapeDtypeStruct(export.symbolic_shape(f"b, {x.shape[1]}", scope=scope), x.dtype)
        for x in inputs
    ]
    return artifact(jitted_gradient(model), (parameters, *shapes))
