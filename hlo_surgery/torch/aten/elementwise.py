"""Elementwise operators: operands are promoted as PyTorch does, and then handed to JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, Operator, array, operator

OF_RESULT: dict[str, Callable[..., Any]] = {
    "abs.default": jnp.abs,
    "acos.default": jnp.arccos,
    "acosh.default": jnp.arccosh,
    "asin.default": jnp.arcsin,
    "asinh.default": jnp.arcsinh,
    "atan.default": jnp.arctan,
    "atan2.default": jnp.arctan2,
    "atanh.default": jnp.arctanh,
    "bitwise_and.Scalar": jnp.bitwise_and,
    "bitwise_and.Tensor": jnp.bitwise_and,
    "bitwise_not.default": jnp.bitwise_not,
    "bitwise_or.Scalar": jnp.bitwise_or,
    "bitwise_or.Tensor": jnp.bitwise_or,
    "bitwise_xor.Scalar": jnp.bitwise_xor,
    "bitwise_xor.Tensor": jnp.bitwise_xor,
    "ceil.default": jnp.ceil,
    "cos.default": jnp.cos,
    "cosh.default": jnp.cosh,
    "div.Scalar": jnp.divide,
    "div.Tensor": jnp.divide,
    "erf.default": jax.lax.erf,
    "erfc.default": jax.lax.erfc,
    "exp.default": jnp.exp,
    "exp2.default": jnp.exp2,
    "expm1.default": jnp.expm1,
    "floor.default": jnp.floor,
    "fmod.Scalar": jnp.fmod,
    "fmod.Tensor": jnp.fmod,
    "hypot.default": jnp.hypot,
    "log.default": jnp.log,
    "log10.default": jnp.log10,
    "log1p.default": jnp.log1p,
    "log2.default": jnp.log2,
    "maximum.default": jnp.maximum,
    "minimum.default": jnp.minimum,
    "mul.Scalar": jnp.multiply,
    "mul.Tensor": jnp.multiply,
    "neg.default": jnp.negative,
    "reciprocal.default": jnp.reciprocal,
    "relu.default": lambda x: jnp.maximum(x, 0),
    "remainder.Scalar": jnp.remainder,
    "remainder.Tensor": jnp.remainder,
    "rsqrt.default": jax.lax.rsqrt,
    "sigmoid.default": jax.nn.sigmoid,
    "sign.default": jnp.sign,
    "sin.default": jnp.sin,
    "sinh.default": jnp.sinh,
    "sqrt.default": jnp.sqrt,
    "tan.default": jnp.tan,
    "tanh.default": jnp.tanh,
    "trunc.default": jnp.trunc,
}
OF_COMMON: dict[str, Callable[..., Any]] = {
    "eq.Scalar": jnp.equal,
    "eq.Tensor": jnp.equal,
    "ge.Scalar": jnp.greater_equal,
    "ge.Tensor": jnp.greater_equal,
    "gt.Scalar": jnp.greater,
    "gt.Tensor": jnp.greater,
    "isinf.default": jnp.isinf,
    "isnan.default": jnp.isnan,
    "le.Scalar": jnp.less_equal,
    "le.Tensor": jnp.less_equal,
    "lt.Scalar": jnp.less,
    "lt.Tensor": jnp.less,
    "ne.Scalar": jnp.not_equal,
    "ne.Tensor": jnp.not_equal,
    "signbit.default": jnp.signbit,
}
OF_TRUTHS: dict[str, Callable[..., Any]] = {
    "logical_and.default": jnp.logical_and,
    "logical_not.default": jnp.logical_not,
    "logical_or.default": jnp.logical_or,
    "logical_xor.default": jnp.logical_xor,
}


def _of_result(function: Callable[..., Any]) -> Operator:
    """The function of operands that have the dtype of the result."""
    return lambda made, *operands: function(*(array(x, made.dtype) for x in operands))


def _of_common(function: Callable[..., Any]) -> Operator:
    """The function of operands that have the dtype which is common to them."""
    return lambda made, *operands: function(*(array(x, made.common) for x in operands))


def _of_truths(function: Callable[..., Any]) -> Operator:
    """The function of whether operands are other than zero, which NaN is."""
    return lambda _, *operands: function(*(array(x, bool) for x in operands))


for _table, _as_operator in (
    (OF_RESULT, _of_result),
    (OF_COMMON, _of_common),
    (OF_TRUTHS, _of_truths),
):
    for _name, _function in _table.items():
        operator(_name)(_as_operator(_function))


@operator("add.Tensor", "add.Scalar")
def _add(made: Made, x: Any, y: Any, alpha: Any = 1) -> Any:
    scaled = array(y, made.dtype) if alpha == 1 else array(y, made.dtype) * array(alpha, made.dtype)
    return jnp.add(array(x, made.dtype), scaled)


@operator("sub.Tensor", "sub.Scalar")
def _sub(made: Made, x: Any, y: Any, alpha: Any = 1) -> Any:
    scaled = array(y, made.dtype) if alpha == 1 else array(y, made.dtype) * array(alpha, made.dtype)
    return jnp.subtract(array(x, made.dtype), scaled)


@operator("div.Tensor_mode", "div.Scalar_mode")
def _divide_rounding(made: Made, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    numerator, denominator = array(x, made.dtype), array(y, made.dtype)
    if rounding_mode == "floor":
        return jnp.floor_divide(numerator, denominator)
    if rounding_mode is None:
        return jnp.divide(numerator, denominator)
    if jnp.issubdtype(made.dtype, jnp.integer):
        return jax.lax.div(*jnp.broadcast_arrays(numerator, denominator))
    return jnp.trunc(numerator / denominator)


@operator("pow.Tensor_Scalar")
def _pow(made: Made, x: Any, exponent: Any) -> Any:
    base = array(x, made.dtype)
    if float(exponent).is_integer() and abs(exponent) <= 64:
        return jax.lax.integer_pow(base, int(exponent))
    return jnp.power(base, array(exponent, made.dtype))


@operator("pow.Scalar", "pow.Tensor_Tensor")
def _pow_of_each(made: Made, base: Any, exponent: Any) -> Any:
    """Of integers, exponents below zero are not told apart as in PyTorch."""
    if jnp.issubdtype(made.dtype, jnp.integer):
        raise NotImplementedError("integers to the power of integers; convert them to floats")
    return jnp.power(array(base, made.dtype), array(exponent, made.dtype))


@operator("round.default")
def _round(made: Made, x: Any) -> Any:
    """Halves go to the even number, as in PyTorch."""
    return x if jnp.issubdtype(made.dtype, jnp.integer) else jnp.round(x)


@operator("clamp.default", "clamp.Tensor")
def _clamp(made: Made, x: Any, min: Any = None, max: Any = None) -> Any:
    """As PyTorch does, max wins where min lies above it."""
    clamped = array(x, made.dtype)
    if min is not None:
        clamped = jnp.maximum(clamped, array(min, made.dtype))
    return clamped if max is None else jnp.minimum(clamped, array(max, made.dtype))


@operator("where.self")
def _where(made: Made, condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition, array(x, made.dtype), array(y, made.dtype))


@operator("gelu.default")
def _gelu(made: Made, x: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(array(x, made.dtype), approximate=approximate == "tanh")


@operator("_to_copy.default", "prims.convert_element_type.default")
def _convert(made: Made, x: Any, *_: Any, **__: Any) -> Any:
    """Any number but zero is True, as array(bool) has it."""
    return array(x, made.dtype)


@operator("_weight_norm_interface.default")
def _weight_norm(made: Made, v: Any, g: Any, dim: int = 0) -> Any:
    norm = _norm_but(v, dim)
    return v * (g / norm), norm.astype(made.dtype)


@operator("_weight_norm_interface_backward.default")
def _weight_norm_backward(
    made: Made, cotangent: Any, v: Any, g: Any, norm: Any, dim: int
) -> tuple[Any, Any]:
    """T. Salimans and D. P. Kingma, Weight Normalization, equation 3."""
    other = tuple(d for d in range(v.ndim) if d != dim)
    of_g = jnp.sum(cotangent * v, axis=other, keepdims=True) / norm
    return g / norm * cotangent - g * of_g / norm**2 * v, of_g


def _norm_but(v: Any, dim: int) -> Any:
    """The norm over all other dimensions."""
    other = tuple(d for d in range(v.ndim) if d != dim)
    return jnp.sqrt(jnp.sum(v * v, axis=other, keepdims=True))
