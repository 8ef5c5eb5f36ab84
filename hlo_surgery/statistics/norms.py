"""Statistics made of norms and inner products of the examples' gradients.

The gradient noise scale: how much of a batch's gradient is noise, and how much signal.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from hlo_surgery.estimators import NoiseScale
from hlo_surgery.passes.measures.measures import Gram, Norms, TokenNorms
from hlo_surgery.passes.measures.moments import ROWS, unbiased
from hlo_surgery.passes.terms.scaling import joint_norm
from hlo_surgery.statistics.derived import (
    Arrays,
    Derived,
    Found,
    Groups,
    Per,
    as_float,
    called,
    leaves_like,
)
from hlo_surgery.statistics.weighted import NORMS, group_grams, group_norms, group_sums

STACKED = (
    "Several directions are stacked in front of each array: "
    "jax.tree.map(lambda *d: jax.numpy.stack(d), d1, d2)"
)


def norms(per: Per = "global", ord: float = 2) -> Derived:
    """The norm of each example's gradient, [B]: over all parameters, for each, or for groups.

    `per`: "global" gives one array, "parameter" a pytree of arrays like the gradient, and a pytree
    prefix of the gradient one array for each of its leaves, or a dict with one for each label where
    the leaves are text: equal ones are one group (in `rewrite_module`: a dict from label to
    outputs). `ord`: any p > 0.

    >>> norms().name, norms("parameter", ord=1).name
    ('norms', "norms('parameter', ord=1)")
    """
    if isinstance(ord, Tracer):
        raise TypeError(
            "norms takes a ord that is known when it is traced; mark it static for jax.jit"
        )
    if not as_float(ord) > 0:
        raise ValueError(f"norms takes ord > 0, such as 1, 2 or float('inf'), not {ord!r}")
    measure = Norms(ord)
    name = called("norms", per, *([] if ord == 2 else [f"ord={ord}"]))

    def combine(found: Found, groups: Groups) -> Arrays:
        return group_norms(found, groups, measure)

    return Derived(name, combine, (measure,), "group", per, by_example=True)


def token_norms() -> Derived:
    """The norm of each position's own share of each gradient, `[B, *positions]` for each parameter:
    a proxy, as `per_token_second_moment`.

    Raises Refusal where a gradient is not a single contraction over examples and positions.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean(jnp.sum(jnp.tanh(x @ w), axis=1))
    >>> f = hs.grad(loss, statistics=hs.token_norms())
    >>> x = jnp.array([[[1.0], [2.0]], [[0.0], [3.0]]])  # two examples of two positions
    >>> f(jnp.zeros(1), x)[1].tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    measure = TokenNorms()
    return Derived("token_norms", lambda found, groups: found.of(measure), (measure,))


def gram(per: Per = "global") -> Derived:
    """Inner products of the examples' gradients, [B, B]: over all parameters, for each, or for
    groups of them.

    The real part for complex parameters. `per` is as in `norms`.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.gram())
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [[1.0, -3.0], [-3.0, 9.0]]
    """
    return Derived(called("gram", per), group_grams, (Gram(),), "group", per)


def inner_products(direction: Literal["mean"] | Any = "mean", per: Per = "global") -> Derived:
    """The inner product of each example's gradient with a direction, [B]; with m of them, [B, m].

    `direction`: "mean" for the mean gradient, or a pytree of arrays like the gradient; or m of
    them, stacked in front of each array: `jax.tree.map(lambda *d: jnp.stack(d), d1, d2)`. They may
    be traced. Of complex numbers it is the real part, as in `gram`. `per` is as in `norms`. Of a
    dumped module the gradient is a dict by the outputs' names. Raises ValueError where a direction
    is not like the gradient.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.inner_products(2.0))
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [-2.0, 6.0]
    """
    name = called("inner_products", per)
    made: Any = {"like": "group", "per": per, "reweights": True}
    if isinstance(direction, str) and direction == "mean":
        return Derived(
            name, lambda found, groups: _along(found.mean(), found, groups), **made, about_mean=True
        )
    if any(isinstance(leaf, str) for leaf in jax.tree.leaves(direction)):
        raise ValueError(
            "inner_products takes 'mean' or a pytree of arrays like the gradient, "
            f"not {direction!r}"
        )
    arrays = jax.tree.map(jnp.asarray, direction)

    def of_tree(gradient: Any) -> Derived:
        along = partial(_along, _like(gradient, arrays))
        return Derived(name, along, **made, joins=ROWS)

    return Derived(name, **made, of_tree=of_tree)


def _along(directions: Arrays, found: Found, groups: Groups) -> Arrays:
    return group_sums(found.along(directions), groups)


def _like(gradient: Any, direction: Any) -> Arrays:
    """The direction's arrays in the order of the gradient's, if they are one like the gradient, or
    as many for each array; else ValueError.
    """
    try:
        arrays = leaves_like(gradient, direction, "inner_products")
    except ValueError as error:
        if not isinstance(direction, list | tuple):
            raise
        raise ValueError(f"{error}. {STACKED}") from None
    shapes = [kind.shape for kind in jax.tree.leaves(gradient)]
    given = [array.shape for array in arrays]
    numbers = {shape[:1] for shape in given}
    stacked = len(numbers) == 1 and [shape[1:] for shape in given] == shapes
    if given == shapes or (stacked and all(given)):
        return arrays
    raise ValueError(
        "the direction of inner_products must be like the gradient, or several such stacked in "
        f"front of each array: it has shapes {given}, the gradient {shapes}"
    )


def noise_scale(per: Per = "global") -> Derived:
    """The two parts of the gradient noise scale, each from an unbiased estimate: a
    `hlo_surgery.estimators.NoiseScale` of two numbers, `variance` and `squared_mean`.

    `variance` is `tr(Sigma) = (mean |g_b|**2 - |mean|**2) B / (B - 1)`, `squared_mean` is
    `|G|**2 = |mean|**2 - tr(Sigma) / B`, and the noise scale, in examples, the first over the
    second, `.ratio` (McCandlish et al., "An Empirical Model of Large-Batch Training", appendix A).
    Of one batch the ratio says little: average both over steps, and divide then
    (`hlo_surgery.estimators.ema_update`, `hlo_surgery.optimizers.track_noise_scale`).
    `squared_mean` is negative where noise hides the signal.

    `per`: "global" takes all parameters together, "parameter" each alone, in a pytree like the
    gradient; groups as in `norms`. A parameter, or group, whose gradients are no more than rounding
    of the largest one's, as the bias of an attention's keys, has 0 for `squared_mean`, and the
    ratio is inf: that is noise alone. It is told by norms below 1e-6 of the
    largest, and so not in low precision.

    `variance` is a difference of squares, as norms have no more to tell, and rounded as they are:
    float32 gradients have it to 1e-7 to 3e-7 of `|mean|**2`, of either sign. So of examples whose
    gradients are alike to 1 %, `tr(Sigma)` being `1e-4 |G|**2`, it is known to about 1e-3, and of
    those alike to 0.03 % not at all; the sum of `hs.variance()`, which is centred, has it there.
    The mean is the gradient as the module rounds it: of bfloat16
    gradients `|G|**2` is known to about 1e-3, and says nothing where that is more than
    `tr(Sigma) / B`. Raises ValueError for a batch of one example.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.noise_scale())
    >>> _, found = f(1.0, jnp.array([1.0, 3.0]))
    >>> float(found.variance), float(found.squared_mean), round(float(found.ratio), 4)
    (2.0, 3.0, 0.6667)
    """

    def combine(found: Found, groups: Groups) -> Arrays:
        means, each = found.mean(), group_norms(found, groups)
        squares = [jnp.sum(jnp.square(norms)) / found.count for norms in each]
        own = [[means[i] for i in group] for group in groups]
        made = [_parts(*pair, found.count) for pair in zip(squares, own, strict=True)]
        rounding = _of_rounding(squares)
        for number, square in enumerate(squares):
            variance, signal = made[number]
            made[number] = NoiseScale(variance, jnp.where(square <= rounding, 0, signal))
        return [part for parts in made for part in parts]

    name = called("noise_scale", per)
    return Derived(
        name, combine, (NORMS,), "group", per, about_mean=True, least=2, parts=NoiseScale
    )


# The biases of attention's keys had norms of half a rounding to two of the largest parameter's.
ROUNDINGS = 8


def _of_rounding(squares: Sequence[Array]) -> Array:
    """The mean squared norm that a group's gradients have by rounding what cancels, at most."""
    known = jnp.stack(squares)
    epsilon = ROUNDINGS * float(jnp.finfo(known.dtype).eps)
    return epsilon**2 * jnp.max(jnp.where(jnp.isfinite(known), known, 0))


def _parts(squares: Array, means: Sequence[Array], count: Array | int) -> NoiseScale:
    """Of a group: the mean of the squared norms of the examples' gradients, and its mean ones."""
    mean = jnp.square(joint_norm([NORMS.of(g[None]) for g in means]))[0]
    variance = (squares - mean) * unbiased(count)
    return NoiseScale(variance, mean - variance / count)
