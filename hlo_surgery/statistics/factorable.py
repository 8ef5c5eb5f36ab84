"""Factorable functions: is phi elementwise, and does phi(a * b) = phi(a) * phi(b) as claimed?"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.measures.measures import Phi

HELP = "leave factorable out: any strategy is exact without it"


def check_elementwise(phi: Phi) -> None:
    """Raise TypeError where phi is no JAX function, or changes the shape. Nothing is run: a program
    may make its statistics before it chooses JAX's devices.
    """
    if not callable(phi):
        raise TypeError(f"phi must be an elementwise JAX function, such as jnp.tanh, not {phi!r}")
    # An array that phi closes over broadcasts with one of these at most.
    for shape in [(2, 3), (5, 7)]:
        made = _made_of(phi, shape)
        if made != shape:
            raise TypeError(f"phi must work on each element; it makes shape {made} from {shape}")


def _made_of(phi: Phi, shape: tuple[int, ...]) -> Any:
    """The shape that phi makes of a float32 array of this one, or what it makes instead."""
    try:
        made = jax.eval_shape(lambda g: phi(g), jax.ShapeDtypeStruct(shape, jnp.float32))
    except jax.errors.TracerArrayConversionError:
        raise TypeError(
            "phi must be a JAX function, and is one of NumPy; take that of jax.numpy, such as "
            "jnp.tanh for np.tanh"
        ) from None
    except jax.errors.JAXTypeError:
        raise  # It names phi's own line, and what to do.
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"phi must work on each element of an array of any shape, and failed on {shape}: "
            f"{str(error).rstrip('.')}. What rests on an element's place, such as a product with "
            "another array, can be had by sum_of"
        ) from error
    return getattr(made, "shape", made)


def check_each_element(phi: Phi) -> None:
    """Raise TypeError where phi makes of an element what rests on others or on its place. Sampled:
    a difference is a proof.
    """
    if not _is_elementwise(phi):
        raise TypeError(
            "phi must work on each element alone; of some elements in another order, or without "
            "the others, it makes something else. sum_of takes a function of an example's whole "
            "gradient, and weighted_mean one of its norm"
        )


def _is_elementwise(phi: Phi) -> bool:
    """Whether permuted and sliced samples come out permuted and sliced, or nothing can be said."""
    drawn = np.random.default_rng(0).normal(size=64)
    # No half holds both the smallest and the largest element.
    ascending = drawn[np.argsort(np.abs(drawn))].astype(np.float32).reshape(8, 8)
    order = np.random.default_rng(1).permutation(64)

    def permuted(x: Any) -> Any:
        return x.reshape(-1)[order].reshape(8, 8)

    parts = (permuted, lambda x: x[:4], lambda x: x[4:])
    with jax.ensure_compile_time_eval():
        whole = phi(jnp.asarray(ascending))
        pairs = [(phi(jnp.asarray(part(ascending))), part(whole)) for part in parts]
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(pairs)) or all(
        np.allclose(alone, among, rtol=1e-3, atol=1e-6, equal_nan=True) for alone, among in pairs
    )


def check_factorable(phi: Phi) -> None:
    """Sampled: a difference is a proof that phi is not factorable."""
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 64)).astype(np.float32) * 3
    a[0] = b[1] = a[2] = b[2] = 0
    product, factors = _sampled(phi, a, b)
    if isinstance(product, Tracer) or isinstance(factors, Tracer):
        raise _refused(phi, "closes over traced values, so that the claim cannot be tested")
    wrong = ~np.isclose(product, factors, rtol=1e-3, atol=1e-6, equal_nan=True)
    if wrong.any():
        i = int(np.argmax(wrong))
        sample = f"phi({a[i]:.3g} * {b[i]:.3g}) = {product[i]:.3g}, not {factors[i]:.3g}"
        raise _refused(phi, sample)


def _refused(phi: Phi, but: str) -> Refusal:
    why = f"phi is declared factorable, but {but}"
    return Refusal(Reason(why, "mean_of", _line_of(phi), HELP))


def is_complex_factorable(phi: Phi) -> bool:
    """Sampled likewise; a function that takes no complex numbers is not."""
    a, b = np.exp(1j * np.linspace(0.1, 6, 64)).reshape(2, 32) * np.linspace(0.5, 2, 32)
    try:
        product, factors = _sampled(phi, a, b)
    except (TypeError, ValueError):  # which jnp.clip raises
        return False
    return bool(np.allclose(product, factors, rtol=1e-3, atol=1e-6))


def _sampled(phi: Phi, a: Any, b: Any) -> tuple[Array, Array]:
    """phi of products and products of phi, as numbers also where JAX is tracing around."""
    with jax.ensure_compile_time_eval():
        return phi(jnp.asarray(a * b)), phi(jnp.asarray(a)) * phi(jnp.asarray(b))


def _line_of(phi: Phi) -> str:
    code = getattr(phi, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = sys.modules.get(getattr(phi, "__module__", "") or "")
    return getattr(module, "__name__", repr(phi))
