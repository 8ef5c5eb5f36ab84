"""Statistics: what can be asked of the gradients g_1 .. g_B of the individual examples. Here:
elementwise means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from hlo_surgery.passes.measures.measures import MeanOf, PerExampleGradients, Phi, TokenMeanOf
from hlo_surgery.passes.measures.moments import squared_magnitude
from hlo_surgery.statistics.derived import (
    Arrays,
    Derived,
    Found,
    Groups,
    Number,
    entries_of,
    flag,
    integer,
    like,
    number,
    positive,
    positive_in,
    shown,
)
from hlo_surgery.statistics.factorable import (
    check_elementwise,
    check_factorable,
    is_complex_factorable,
)


def mean_of(phi: Phi, factorable: bool = False) -> MeanOf:
    """The mean over the examples of `phi(g_b)`, for any elementwise JAX function phi.

    The result is like the gradient. Declare `factorable=True` where `phi(a * b) = phi(a) * phi(b)`
    for all numbers a, b: dense layers then cost one more contraction, of phi of both operands. The
    claim is tested on samples. Raises Refusal where it does not hold. TypeError where phi is not
    elementwise is raised where it is used, since samples tell.

    >>> import jax.numpy as jnp
    >>> mean_of(jnp.tanh).factorable
    False
    >>> mean_of(jnp.tanh, factorable=True)
    Traceback (most recent call last):
        ...
    hlo_surgery.Refusal: ...
    """
    name = f"mean_of({getattr(phi, '__name__', 'phi')})"
    check_elementwise(phi)
    if not flag("mean_of", "factorable", factorable):
        return MeanOf(name, phi, is_given=True)
    check_factorable(phi)
    return MeanOf(name, phi, True, is_complex_factorable(phi), is_given=True)


SECOND_MOMENT = MeanOf("second_moment", squared_magnitude, factorable=True, complex_factorable=True)


def second_moment() -> MeanOf:
    """The mean over the examples of `|g_b|**2`, elementwise: nu of MicroAdam (Roulet and Agarwala,
    section 3).

    The result is like the gradient.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.second_moment())
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    5.0
    """
    return SECOND_MOMENT


def mean_sign() -> MeanOf:
    """The mean over the examples of `sign(g_b)`, elementwise: the direction of MicroSignSGD.

    The result is like the gradient. Of Roulet and Agarwala, section "Where should you place the
    sign in SignSGD?".

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.mean_sign())
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    0.0
    """
    return MeanOf("mean_sign", jnp.sign, factorable=True, complex_factorable=True)


def mean_abs() -> MeanOf:
    """The mean over the examples of `|g_b|`, elementwise.

    The result is like the gradient.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.mean_abs())
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    2.0
    """
    return MeanOf("mean_abs", jnp.abs, factorable=True, complex_factorable=True)


@dataclass(frozen=True)
class _Power:
    """g**k, equal to any other such function."""

    k: int

    def __call__(self, g: Array) -> Array:
        return g**self.k


def mean_power(k: int) -> MeanOf:
    """The mean over the examples of `g_b**k`, elementwise, for an integer k >= 1.

    The result is like the gradient. Raises ValueError for any other k.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.mean_power(3))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    13.0
    """
    power = integer("mean_power", "k >= 1 (for other powers use mean_of)", k, 1)
    return MeanOf(f"mean_power({power})", _Power(power), factorable=True, complex_factorable=True)


@dataclass(frozen=True)
class _Clip:
    threshold: Number

    def __call__(self, g: Array) -> Array:
        bound = positive_in(jnp.finfo(g.dtype).dtype, self.threshold)
        # XLA on CPU may drop NaN from a minimum or maximum.
        return jnp.where(jnp.isnan(g), g, jnp.clip(g, -bound, bound))


def mean_of_clipped_entries(threshold: Number) -> MeanOf:
    """The mean over the examples of g_b with each element clipped to [-threshold, threshold].

    The result is like the gradient.

    `threshold` may be traced; what is not positive and finite then makes the mean NaN.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.mean_of_clipped_entries(2.0))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    0.5
    """
    clip = _Clip(positive("mean_of_clipped_entries", "threshold", threshold))
    # A traced threshold equals nothing but itself.
    phi = partial(_Clip.__call__, clip) if isinstance(threshold, Tracer) else clip
    return MeanOf(f"mean_of_clipped_entries({shown(threshold)})", phi)


def linear_combination(terms: Sequence[tuple[Number, MeanOf]]) -> Derived:
    """The sum of `c * statistic` over `terms`, pairs (c, statistic) of elementwise means.

    The result is like the gradient.

    Where the statistics are factorable, each term costs one contraction: so the mean of any
    polynomial, and of the Taylor series of a function (Roulet and Agarwala, section 2.3).

    >>> linear_combination([(1.0, mean_power(1)), (-1 / 6, mean_power(3))]).name
    'linear_combination'
    """
    given = entries_of(terms)
    if not given or not all(map(_is_term, given)):
        raise TypeError(
            "linear_combination takes pairs (coefficient, elementwise mean), such as (0.5, "
            "mean_power(2))"
        )
    pairs: list[tuple[Number, MeanOf]]
    pairs = [(number("linear_combination", "a coefficient", c), s) for c, s in given]

    def combine(found: Found, groups: Groups) -> Arrays:
        each = zip(*(found.of(s) for _, s in pairs), strict=True)
        return [
            sum(like(c, x) * x for (c, _), x in zip(pairs, values, strict=True)) for values in each
        ]  # type: ignore[misc]

    return Derived("linear_combination", combine, tuple(s for _, s in pairs))


def _is_term(term: Any) -> bool:
    return len(entries_of(term)) == 2 and isinstance(term[1], MeanOf)


def polynomial(coefficients: Sequence[Number]) -> Derived:
    """The mean over the examples of `c0 + c1 g + c2 g**2 + ...`, elementwise; each power is one
    contraction.

    The result is like the gradient.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.polynomial([1.0, 0.0, 2.0]))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    11.0
    """
    given = entries_of(coefficients)
    if len(given) < 2:
        raise ValueError(
            "polynomial takes the coefficients of 1, g, g**2, ...; give at least two, in a list"
        )
    constant, *rest = (number("polynomial", "a coefficient", c) for c in given)
    powers = linear_combination([(c, mean_power(k)) for k, c in enumerate(rest, 1)])

    def combine(found: Found, groups: Groups) -> Arrays:
        return [like(constant, value) + value for value in powers.combine(found, groups)]

    return Derived(f"polynomial({', '.join(map(shown, given))})", combine, powers.measures)


def per_example() -> PerExampleGradients:
    """The gradients of all examples, `[B, *shape]`: B times the memory of the parameters.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.per_example())
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [-1.0, 3.0]
    """
    return PerExampleGradients()


def per_example_losses() -> Derived:
    """Each example's own loss, [B]. The module must return its loss, as `value_and_grad` does.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean(w * x)
    >>> f = hs.value_and_grad(loss, statistics=hs.per_example_losses())
    >>> f(2.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [-2.0, 6.0]
    """
    kind: Any = {"like": "group", "by_example": True}
    return Derived("per_example_losses", lambda found, _: [found.losses()], losses=True, **kind)


def crossed() -> Derived:
    """Which examples met others as the program ran, where ids tell rows apart (`segments`), [B]:
    they have NaN for statistics, and so have means. All are True where an id is no example's.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.crossed())
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [False, False]
    """
    kind: Any = {"like": "group", "by_example": True}
    return Derived("crossed", lambda found, _: [found.crossed()], **kind)


def per_token_second_moment() -> Derived:
    """The second moment as if each position of a sequence were an example: a proxy, and no
    statistic of the examples.

    The result is like the gradient.

    Sum over positions l of the squared share of l in the gradient, mean over examples (Roulet and
    Agarwala, section 2.4): one contraction of squares where `second_moment` needs every example's
    gradient. Raises Refusal where a gradient is not a single contraction over examples and
    positions.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean(jnp.sum(jnp.tanh(x @ w), axis=1))
    >>> f = hs.grad(loss, statistics=hs.per_token_second_moment())
    >>> x = jnp.array([[[1.0], [2.0]], [[0.0], [3.0]]])  # two examples of two positions
    >>> f(jnp.zeros(1), x)[1].tolist()  # (1 + 4 + 0 + 9) / 2
    [7.0]
    """
    measure = TokenMeanOf(squared_magnitude)
    return Derived("per_token_second_moment", lambda found, groups: found.of(measure), (measure,))
