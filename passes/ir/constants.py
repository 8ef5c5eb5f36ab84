"""Constants: their elements, and what sums of such elements are accumulated in.

Element types: `bf16`, `complex<f32>`, `ui8` in the module, and the same as a numpy dtype.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Shape, Value, func, ir, stablehlo

Arrays = Sequence[Array]
_DTYPES = {
    name: np.dtype(own)
    for name, own in {
        "i1": "bool",
        "i4": "int4",
        "i8": "int8",
        "i16": "int16",
        "i32": "int32",
        "i64": "int64",
        "ui4": "uint4",
        "ui8": "uint8",
        "ui16": "uint16",
        "ui32": "uint32",
        "ui64": "uint64",
        "bf16": "bfloat16",
        "f16": "float16",
        "f32": "float32",
        "f64": "float64",
        "f8E3M4": "float8_e3m4",
        "f8E4M3": "float8_e4m3",
        "f8E4M3FN": "float8_e4m3fn",
        "f8E4M3FNUZ": "float8_e4m3fnuz",
        "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
        "f8E5M2": "float8_e5m2",
        "f8E5M2FNUZ": "float8_e5m2fnuz",
        "f8E8M0FNU": "float8_e8m0fnu",
        "complex<f32>": "complex64",
        "complex<f64>": "complex128",
    }.items()
}


def is_static_array(value: Value) -> bool:
    """Whether `value` is a ranked tensor of static shape whose element type numpy can hold."""
    if not isinstance(value.type, ir.RankedTensorType):
        return False
    return value.type.has_static_shape and str(value.type.element_type) in _DTYPES


def kinds_of(values: Iterable[Value]) -> list[tuple[Shape, np.dtype[Any]]]:
    """Shape and element type of each value; that of objects, where numpy cannot hold it."""
    unknown = np.dtype(object)
    return [(mlir.shape(v), dtype_of(v) if is_static_array(v) else unknown) for v in values]


def has_numbers(op: Operation) -> bool:
    """Whether no result is of i1, on which StableHLO's add is a logical or, and multiply an and."""
    return all(dtype_of(result) != np.bool_ for result in op.results)


def dtype_of(value: Value) -> np.dtype:
    """The element type of a tensor value: `tensor<2x3xbf16>` -> `dtype(bfloat16)`."""
    return _DTYPES[str(ir.RankedTensorType(value.type).element_type)]


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """What squares and sums of such elements are accumulated in: float32 for all that is narrower.

    JAX promotes no float8, since it might be meant otherwise.
    """
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
        return np.dtype(np.float32)
    with jax.numpy_dtype_promotion("standard"):
        return np.dtype(jnp.promote_types(dtype, jnp.float32))


def widened(x: Array) -> Array:
    """An array in what its squares and sums are accumulated in."""
    return x.astype(wide_dtype(x.dtype))


def summable(x: Any) -> Array:
    """An array in what it is summed in over examples: floats widened, and flags and narrow integers
    as int32, since sums of booleans are a logical or, and narrow ones wrap.
    """
    array = jnp.asarray(x)
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return widened(array)
    return array.astype(jnp.int32) if array.dtype.itemsize < 4 else array


def widened_tree(tree: Any) -> Any:
    """Arrays and numbers, each in what its squares and sums are accumulated in."""
    return jax.tree.map(lambda leaf: widened(jnp.asarray(leaf)), tree)


# Of these element types the MLIR bindings hand over a constant's elements as a buffer.
_BUFFERS = frozenset(
    map(np.dtype, ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
)


def is_table(op: Operation) -> bool:
    """Whether an op is a constant of numbers that are not all the same."""
    if op.name != "stablehlo.constant":
        return False
    if mlir.is_complex(op.result):
        numbers = elements(op)
        return bool((numbers != numbers.ravel()[:1]).any())
    return not cast(Any, op.attributes["value"]).is_splat


def elements(op: Operation) -> npt.NDArray[Any]:
    """The elements of a constant, of any element type that numpy holds."""
    dtype = dtype_of(op.result)
    if dtype in _BUFFERS:
        return np.array(op.attributes["value"])
    if dtype.kind != "c":
        return _interpreted(op, "stablehlo.convert", "f32").astype(dtype)
    part_type = f"f{dtype.itemsize * 4}"
    parts = [_interpreted(op, f"stablehlo.{part}", part_type) for part in ("real", "imag")]
    return np.stack(parts, -1).view(dtype)[..., 0]


def _interpreted(op: Operation, unary: str, element_type: str) -> npt.NDArray[Any]:
    """A constant that the bindings cannot read, after a unary op to a type that they can."""
    with mlir.context(), ir.Location.unknown():
        result = ir.RankedTensorType.get(mlir.shape(op.result), ir.Type.parse(element_type))
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ir.FunctionType.get([], [result]))
        with ir.InsertionPoint(main.add_entry_block()):
            converted = ir.Operation.create(unary, [result], [cast(Any, op.clone()).result])
            func.ReturnOp(list(converted.results))
        return np.array(stablehlo.eval_module(module, [])[0])
