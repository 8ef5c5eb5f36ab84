"""Statistics: what can be asked of the gradients g_1 .. g_B of the individual examples."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.errors import Reason, Refusal

Phi = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class MeanOf:
    """The mean over the examples of an elementwise function.

    `factorable`: phi(a * b) = phi(a) * phi(b) for all real numbers; `complex_factorable`: for all complex ones.
    """

    name: str
    phi: Phi
    factorable: bool = False
    complex_factorable: bool = False


@dataclass(frozen=True)
class PerExampleGradients:
    """All gradients, [B, *parameter]."""

    name: str = "per_example"


Statistic = MeanOf | PerExampleGradients


def mean_of(phi: Phi, factorable: bool = False) -> MeanOf:
    """The mean over the examples of phi(g_b), for any elementwise JAX function phi.

    Declare `factorable=True` where phi(a * b) = phi(a) * phi(b) for all numbers a, b: dense layers then cost one more
    contraction, of phi of both operands. The claim is tested on samples. Raises Refusal where it does not hold, and
    TypeError where phi is not elementwise.

    >>> import jax.numpy as jnp
    >>> mean_of(jnp.tanh).factorable
    False
    >>> mean_of(jnp.tanh, factorable=True)
    Traceback (most recent call last):
        ...
    hlo_surgery.errors.Refusal: ...
    """
    name = getattr(phi, "__name__", "phi")
    _check_elementwise(phi)
    if not factorable:
        return MeanOf(f"mean_of({name})", phi)
    _check_factorable(phi)
    return MeanOf(f"mean_of({name})", phi, factorable=True, complex_factorable=_is_complex_factorable(phi))


def second_moment() -> MeanOf:
    """The mean over the examples of |g_b|**2, elementwise: nu of MicroAdam (Roulet and Agarwala, section 3)."""
    return MeanOf("second_moment", lambda g: jnp.real(g * jnp.conj(g)), factorable=True, complex_factorable=True)


def mean_sign() -> MeanOf:
    """The mean over the examples of sign(g_b), elementwise: the direction of MicroSignSGD."""
    return MeanOf("mean_sign", jnp.sign, factorable=True, complex_factorable=True)


def mean_abs() -> MeanOf:
    """The mean over the examples of |g_b|, elementwise."""
    return MeanOf("mean_abs", jnp.abs, factorable=True, complex_factorable=True)


def mean_power(k: int) -> MeanOf:
    """The mean over the examples of g_b**k, elementwise, for an integer k >= 1."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"mean_power takes an integer k >= 1, not {k!r}; for other powers use mean_of")
    return MeanOf(f"mean_power({k})", lambda g: g**k, factorable=True, complex_factorable=True)


def per_example() -> PerExampleGradients:
    """The gradients of all examples, [B, *parameter]: B times the memory of the parameters."""
    return PerExampleGradients()


def named(statistics: Statistic | Mapping[str, Statistic]) -> dict[str, Statistic]:
    """One statistic under its own name, or a dict as it is. Raises TypeError for anything else."""
    if isinstance(statistics, Statistic):
        return {statistics.name: statistics}
    if not isinstance(statistics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"statistics is {statistics!r}; pass a statistic, such as second_moment(), or a dict of them")
    wanted = dict(statistics)
    for name, statistic in wanted.items():
        if not isinstance(statistic, Statistic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"statistics[{name!r}] is {statistic!r}; pass a statistic, such as second_moment()")
    if not wanted:
        raise ValueError("no statistic is asked for; pass at least one, such as second_moment()")
    return wanted


def _check_elementwise(phi: Phi) -> None:
    shape = jax.eval_shape(phi, jax.ShapeDtypeStruct((2, 3), jnp.float32)).shape
    if shape != (2, 3):
        raise TypeError(f"phi must work on each element; it makes shape {shape} from (2, 3)")


def _check_factorable(phi: Phi) -> None:
    """Sampled: a difference is a proof that phi is not factorable."""
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 64)).astype(np.float32) * 3
    a[0] = b[1] = a[2] = b[2] = 0
    product, factors = np.asarray(phi(jnp.asarray(a * b))), np.asarray(phi(jnp.asarray(a)) * phi(jnp.asarray(b)))
    wrong = ~np.isclose(product, factors, rtol=1e-3, atol=1e-6, equal_nan=True)
    if wrong.any():
        i = int(np.argmax(wrong))
        why = f"phi is declared factorable, but phi({a[i]:.3g} * {b[i]:.3g}) = {product[i]:.3g}, not {factors[i]:.3g}"
        raise Refusal(Reason(why, "mean_of", _line_of(phi), "leave factorable out: any strategy is exact without it"))


def _is_complex_factorable(phi: Phi) -> bool:
    """Sampled likewise; a function that takes no complex numbers is not."""
    a, b = np.exp(1j * np.linspace(0.1, 6, 64)).reshape(2, 32) * np.linspace(0.5, 2, 32)
    try:
        product, factors = phi(jnp.asarray(a * b)), phi(jnp.asarray(a)) * phi(jnp.asarray(b))
    except TypeError:
        return False
    return bool(np.allclose(product, factors, rtol=1e-3, atol=1e-6))


def _line_of(phi: Phi) -> str:
    code = getattr(phi, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    module = sys.modules.get(getattr(phi, "__module__", "") or "")
    return getattr(module, "__name__", repr(phi))
