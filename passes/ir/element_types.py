"""Element types: `bf16`, `complex<f32>`, `ui8` in the module, and the same as a numpy dtype."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, ir

_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(scalar)
    for name, scalar in {
        "i1": np.bool_,
        "i4": jnp.int4,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
        "ui4": jnp.uint4,
        "ui8": np.uint8,
        "ui16": np.uint16,
        "ui32": np.uint32,
        "ui64": np.uint64,
        "bf16": jnp.bfloat16,
        "f16": np.float16,
        "f32": np.float32,
        "f64": np.float64,
        "f8E3M4": jnp.float8_e3m4,
        "f8E4M3": jnp.float8_e4m3,
        "f8E4M3FN": jnp.float8_e4m3fn,
        "f8E4M3FNUZ": jnp.float8_e4m3fnuz,
        "f8E4M3B11FNUZ": jnp.float8_e4m3b11fnuz,
        "f8E5M2": jnp.float8_e5m2,
        "f8E5M2FNUZ": jnp.float8_e5m2fnuz,
        "f8E8M0FNU": jnp.float8_e8m0fnu,
        "complex<f32>": np.complex64,
        "complex<f64>": np.complex128,
    }.items()
}


def is_static_array(value: Value) -> bool:
    """Whether `value` is a ranked tensor of static shape whose element type numpy can hold."""
    if not isinstance(value.type, ir.RankedTensorType):
        return False
    return value.type.has_static_shape and str(value.type.element_type) in _DTYPES


def kinds_of(values: Iterable[Value]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
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
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return np.dtype(np.float32) if narrow else np.dtype(jnp.promote_types(dtype, jnp.float32))


def widened(x: jax.Array) -> jax.Array:
    """An array in what its squares and sums are accumulated in."""
    return x.astype(wide_dtype(x.dtype))


def summable(x: Any) -> jax.Array:
    """An array in what it is summed in over examples: floats widened, and flags and narrow integers
    as int32, since sums of booleans are a logical or, and narrow ones wrap.
    """
    array = jnp.asarray(x)
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return widened(array)
    return array.astype(jnp.int32) if array.dtype.itemsize < 4 else array


def widened_tree(tree: Any) -> Any:
    """Arrays and numbers, each in what its squares and sums are accumulated in."""

    def of_leaf(leaf: Any) -> jax.Array:
        return widened(jnp.asarray(leaf))

    return jax.tree.map(of_leaf, tree)
