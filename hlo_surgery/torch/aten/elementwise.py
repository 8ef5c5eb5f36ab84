"""Elementwise operators: PyTorch's own primitives, which promote and broadcast nothing.

Creation: tensors of numbers that are known. What PyTorch leaves unset is zero.
"""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, operator, rows

# Of the same name in JAX, and of others.
NUMPY = (
    *("abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and"),
    *("bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "exp", "exp2", "expm1"),
    *("floor", "fmod", "hypot", "isfinite", "log", "log10", "log1p", "log2", "maximum", "minimum"),
    *("reciprocal", "remainder", "round", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    "where",
)
LAX = ("digamma", "erf", "erf_inv", "erfc", "lgamma", "rsqrt")
FUNCTIONS = {
    **{name: getattr(jnp, name) for name in NUMPY},
    **{name: getattr(jax.lax, name) for name in LAX},
    "eq": jnp.equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "lt": jnp.less,
    "mul": jnp.multiply,
    "ne": jnp.not_equal,
    "neg": jnp.negative,
    "sub": jnp.subtract,
}


for _name, _function in FUNCTIONS.items():
    rows({f"prims.{_name}.default": lambda _, *operands, of=_function: of(*operands)})

ZEROS = "empty.memory_format empty_permuted.default prims.empty_strided.default"
rows(
    {
        "prims.signbit.default": lambda made, x: array(jnp.signbit(x), made.dtype),
        # Any number but zero is True, as array(bool) has it.
        "_to_copy.default prims.convert_element_type.default": lambda made, x, *_, **__: array(
            x, made.dtype
        ),
        "full.default full_like.default": lambda made, _, value, **__: jnp.full(
            made.shape, array(value, made.dtype)
        ),
        "scalar_tensor.default prims.scalar_tensor.default": lambda made, value, **_: array(
            value, made.dtype
        ),
        ZEROS: lambda made, *_, **__: jnp.zeros(made.shape, made.dtype),
        "prims.iota.default": lambda made, length, *, start, step, **_: (
            start + step * jnp.arange(length, dtype=made.dtype)
        ),
    }
)


@operator("prims.div.default")
def _div(made: Made, x: Any, y: Any) -> Any:
    """Of integers towards zero."""
    numerator, denominator = jnp.broadcast_arrays(array(x, made.dtype), array(y, made.dtype))
    return jax.lax.div(numerator, denominator)


@operator("prims.pow.default")
def _pow(made: Made, base: Any, exponent: Any) -> Any:
    """Of integers, exponents below zero are not told apart as in PyTorch."""
    if not isinstance(exponent, jax.Array) and float(exponent).is_integer() and abs(exponent) <= 64:
        return jax.lax.integer_pow(base, int(exponent))
    if jnp.issubdtype(made.dtype, jnp.integer):
        raise NotImplementedError("integers to the power of integers; convert them to floats")
    return jnp.power(array(base, made.dtype), array(exponent, made.dtype))


@operator("_weight_norm_interface_backward.default")
def _weight_norm_backward(
    _: Made, cotangent: Any, v: Any, g: Any, norm: Any, dim: int
) -> tuple[Any, Any]:
    """T. Salimans and D. P. Kingma, Weight Normalization, equation 3."""
    other = tuple(d for d in range(v.ndim) if d != dim)
    of_g = jnp.sum(cotangent * v, axis=other, keepdims=True) / norm
    return g / norm * cotangent - g * of_g / norm**2 * v, of_g
