"""One op as a JAX function, whatever it is: it is cloned into a module of its own and called.

This is the way of ops without a raising rule. It can be looped over examples, but `vmap` cannot
lift it.
"""

from typing import Any, cast

import jax

from hlo_surgery.passes.dataflow.kernels import ATTRIBUTE
from hlo_surgery.passes.emit.export import carry
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, func, ir
from hlo_surgery.passes.ir.modules import marks
from hlo_surgery.passes.raising.raise_op import Raised


def call_op(op: Operation) -> Raised:
    """A function of the op's operands, in which operands may hold one example instead of B."""
    outside = mlir.captured(op)
    if not all(mlir.made_by(v, "stablehlo.constant") for v in outside):
        raise ValueError(
            f"{op.name} uses values from outside in its body, which only constants may be"
        )

    def called(*operands: jax.Array) -> tuple[jax.Array, ...]:
        module = _module(op, outside, [operand.shape for operand in operands])
        results = [jax.ShapeDtypeStruct(mlir.shape(r), dtype_of(r)) for r in op.results]
        exported = carry(module, operands, results, jax.default_backend())
        return tuple(cast(Any, exported.call(*operands)))

    return called


def _module(op: Operation, outside: list[Value], shapes: list[tuple[int, ...]]) -> mlir.Module:
    with mlir.context(), ir.Location.unknown():
        kinds = [mlir.tensor_type(v, shape) for shape, v in zip(shapes, op.operands, strict=True)]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ir.FunctionType.get(kinds, [r.type for r in op.results]))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            inside = {
                v: cast(Any, mlir.defining_operation(v)).clone().operation.results[0]
                for v in outside
            }
            copied = cast(Any, op.clone()).operation
            func.ReturnOp(list(copied.results))
        for i, argument in enumerate(block.arguments):
            copied.operands[i] = argument
        for inner in (copied, *mlir.nested_operations(copied)):
            mlir.drop_attributes(inner, [ATTRIBUTE, *marks(inner)])
            for i, operand in enumerate(inner.operands):
                inner.operands[i] = inside.get(operand, operand)
        module.operation.verify()
        return module
