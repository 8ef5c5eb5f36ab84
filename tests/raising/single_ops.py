"""One StableHLO op at a time: cut out into a module of its own, run by XLA on given operands."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of
from hlo_surgery.passes.ir.mlir import func, ir, stablehlo


@functools.cache
def parsed(text):
    """A module of the text. The cache keeps it: an op does not keep its module alive."""
    return mlir.parse(text)


def snippet_op(types, text):
    """The op of `text`, whose operands are %0, %1... of the given types."""
    arguments = ", ".join(f"%{i}: tensor<{kind}>" for i, kind in enumerate(types))
    module = parsed(f"func.func @main({arguments}) {{ \n {text} \n return }}")
    return mlir.operations(mlir.body(mlir.main_function(module)))[0]


def execute(op, operands):
    """The op's results on these operands, from XLA."""
    return executable(op)(operands)


def executable(op):
    """From operands to the op's results, from XLA: compiled once for all of them."""
    structs, results = (
        [jax.ShapeDtypeStruct(mlir.shape(v), dtype_of(v)) for v in values]
        for values in (op.operands, op.results)
    )
    artifact = stablehlo.serialize_portable_artifact(module_of(op), stablehlo.get_current_version())
    with jax.enable_x64(True):
        stand_in = jax.jit(
            lambda *_: [jnp.zeros(r.shape, r.dtype) for r in results], keep_unused=True
        )
        exported = jax.export.export(stand_in)(*structs)
        compiled = jax.jit(dataclasses.replace(exported, mlir_module_serialized=artifact).call)

    def run(operands):
        with jax.enable_x64(True):
            return [np.asarray(y) for y in compiled(*operands)]

    return run


def module_of(op):
    """A module of the op alone: its operands are arguments, its results are returned."""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [v.type for v in op.operands], [v.type for v in op.results]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", types, visibility="public")
        block = main.add_entry_block()
        with ir.InsertionPoint(block):
            copy = op.clone().operation
            for i, argument in enumerate(block.arguments):
                copy.operands[i] = argument
            func.ReturnOp(list(copy.results))
        return module


def random_operands(op, rng):
    """Of about unit size; integers go a little beyond the bounds of small dimensions, both ways."""
    return [random_array(mlir.shape(v), dtype_of(v), rng) for v in op.operands]


def random_array(shape, dtype, rng):
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(-2 if jnp.issubdtype(dtype, jnp.signedinteger) else 0, 6, shape).astype(
            dtype
        )
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)
