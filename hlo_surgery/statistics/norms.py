"""Statistics made of norms and inner products of the examples' gradients."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.passes.measures.joins import MEANS, ROWS
from hlo_surgery.passes.measures.measures import Gram, Norms, TokenNorms
from hlo_surgery.passes.measures.moments import unbiased
from hlo_surgery.passes.measures.scaled_norms import joint_norm
from hlo_surgery.statistics.derived import Derived, Groups, Per, positive
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number, as_float, flag, known, positive_in, shown

NORMS = Norms()


def norms(per: Per = "global", ord: float = 2) -> Derived:
    """The norm of each example's gradient, [B]: over all parameters, for each, or for groups.

    `per`: "global" gives one array, "parameter" a pytree of arrays like the gradient, and a pytree
    prefix of the gradient one array for each of its leaves, or a dict with one for each label where
    the leaves are text: equal ones are one group (in `rewrite_module`: a dict from label to
    outputs). `ord`: any p > 0.

    >>> norms().name, norms("parameter", ord=1).name
    ('norms', "norms('parameter', ord=1)")
    """
    if not as_float(known("norms", "ord", ord)) > 0:
        raise ValueError(f"norms takes ord > 0, such as 1, 2 or float('inf'), not {ord!r}")
    measure = Norms(ord)
    name = _name("norms", per, *([] if ord == 2 else [f"ord={ord}"]))
    return Derived(
        name, lambda found, groups: group_norms(found, groups, measure), (measure,), "group", per
    )


def group_norms(found: Found, groups: Groups, measure: Norms = NORMS) -> list[jax.Array]:
    """The norm of each example's gradient over each group of outputs, [B]."""
    each = found.of(measure)
    return [joint_norm([each[i] for i in group], measure.ord) for group in groups]


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

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        each = found.of(Gram())
        return [_added([each[i] for i in group]) for group in groups]

    return Derived(_name("gram", per), combine, (Gram(),), "group", per)


def inner_products(direction: Literal["mean"] | Any = "mean", per: Per = "global") -> Derived:
    """The inner product of each example's gradient with a direction, [B]; with m of them, [B, m].

    `direction`: "mean" for the mean gradient, or a pytree of arrays like the gradient; or m of
    them, stacked in front of each array: `jax.tree.map(lambda *d: jnp.stack(d), d1, d2)`. They may
    be traced. `per` is as in `norms`. Raises ValueError where they are like none.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.inner_products(2.0))
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [-2.0, 6.0]
    """
    fixed = None if _is_mean(direction) else [jnp.asarray(x) for x in jax.tree.leaves(direction)]

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        means = found.mean()
        each = found.along(means if fixed is None else _like(means, fixed))
        return [_added([each[i] for i in group]) for group in groups]

    joins = None if fixed is None else ROWS
    name = _name("inner_products", per)
    return Derived(name, combine, like="group", per=per, reweights=True, joins=joins)


def _is_mean(direction: Any) -> bool:
    """Whether the direction is "mean"; else ValueError, if there is other text in it."""
    if isinstance(direction, str) and direction == "mean":
        return True
    if any(isinstance(leaf, str) for leaf in jax.tree.leaves(direction)):
        raise ValueError(
            "inner_products takes 'mean' or a pytree of arrays like the gradient, "
            f"not {direction!r}"
        )
    return False


def _like(means: Sequence[jax.Array], directions: list[jax.Array]) -> list[jax.Array]:
    """The directions, if they are one like the gradient, or as many for each output; else
    ValueError.
    """
    shapes = [m.shape for m in means]
    given = [d.shape for d in directions]
    numbers = {shape[:1] for shape in given}
    stacked = len(numbers) == 1 and [shape[1:] for shape in given] == shapes
    if given == shapes or (stacked and all(given)):
        return directions
    raise ValueError(
        "the direction of inner_products must be like the gradient, or several such stacked in "
        f"front of each array: it has shapes {given}, the gradient {shapes}"
    )


def noise_scale() -> Derived:
    """The gradient noise scale `tr(Sigma) / |G|**2`, one number, in examples, from unbiased
    estimates of both.

    `tr(Sigma) = (mean |g_b|**2 - |mean|**2) B / (B - 1)` and `|G|**2 = |mean|**2 - tr(Sigma) / B`
    (McCandlish et al., "An Empirical Model of Large-Batch Training", appendix A). It can be
    negative where the batch is far too small. The mean is the gradient as the module rounds it: of
    bfloat16 gradients `|G|**2` is known to about 1e-3, and no ratio is to be had where that is more
    than `tr(Sigma) / B`. Raises ValueError for a batch of one example.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.noise_scale())
    >>> round(float(f(1.0, jnp.array([1.0, 3.0]))[1]), 4)  # tr(Sigma) is 2, |G|**2 is 4 - 1
    0.6667
    """

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        (every,) = groups
        each, means = found.of(NORMS), found.mean()
        count = found.count
        squares = jnp.sum(jnp.square(joint_norm([each[i] for i in every]))) / count
        mean = jnp.square(joint_norm([NORMS.of(means[i][None]) for i in every]))[0]
        noise = (squares - mean) * unbiased(count)
        return [noise / (mean - noise / count)]

    return Derived("noise_scale", combine, (NORMS,), "group", least=2)


def clipped_mean(max_norm: Number, per: Per = "global", nan_safe: bool = False) -> Derived:
    """The mean of the examples' gradients, each scaled down to norm `max_norm` at most: the
    clipping of DP-SGD.

    The result is like the gradient. Of Abadi et al., "Deep Learning with Differential Privacy",
    algorithm 1.

    Replacing one example moves the sum of the clipped gradients by at most 2 `max_norm`, adding or
    removing one by `max_norm`, over each group of `per` (as in `norms`); the mean is that sum over
    B, and the caller adds the noise. `max_norm` may be traced, and another one at every step; what
    is not positive and finite then makes the mean NaN. `nan_safe`: an example whose gradient is not
    finite counts as zero; otherwise it makes the mean NaN. Accumulated in at least float32; the
    bound holds up to rounding, which is 1e-7 of `max_norm`, and at most 1e-3 where a gradient is
    all but cancelled among its positions. Norms are right wherever they are normal numbers. An
    example whose norm is none, or is so large that its weight max_norm / (B norm) is none, counts
    as zero.
    It refuses what is not provably separable, also with `on_mixing="contribution"`.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.clipped_mean(2.0))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # (-1 + 2) / 2
    0.5
    """
    limit = positive("clipped_mean", "max_norm", max_norm)

    def clip(norm: jax.Array) -> jax.Array:
        bound = positive_in(norm.dtype, _in_range(limit, norm.dtype))
        return bound / jnp.maximum(norm, bound)

    return _weighted(
        _name("clipped_mean", per, shown(max_norm), default=False),
        clip,
        per,
        flag("clipped_mean", "nan_safe", nan_safe),
        private=True,
    )


def _in_range(limit: Number, dtype: Any) -> Number:
    """The limit, if traced or a normal number of the norms' dtype; else weights would be 0 / 0."""
    range = jnp.finfo(dtype)
    if not isinstance(limit, Tracer) and not float(range.tiny) <= float(limit) <= float(range.max):
        raise ValueError(
            f"clipped_mean takes a max_norm from {range.tiny:.3g} to {range.max:.3g}, as norms "
            f"here are {dtype}, "
            f"not {limit}"
        )
    return limit


def weighted_mean(
    w: Callable[[jax.Array], jax.Array], per: Per = "global", nan_safe: bool = False
) -> Derived:
    """The mean over the examples of `w_b g_b`, weights [B] being a JAX function of the norms [B].
    The result is like the gradient.

    `weighted_mean(lambda n: 1 / (n + 0.01))` is AUTO-S (Bu et al., "Automatic Clipping"). `per` and
    `nan_safe` are as in `clipped_mean`. Raises TypeError where w is no function, and ValueError,
    when the statistic is computed, where it makes no real array [B].

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> normalised = hs.weighted_mean(lambda norms: 1 / norms)
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=normalised)
    >>> float(f(1.0, jnp.array([1.0, 3.0]))[1])
    1.0
    """
    if not callable(w):
        raise TypeError(
            "weighted_mean takes a function from the norms [B] to weights [B]; for weights that "
            "are known, pass one that returns them: weighted_mean(lambda norms: weights)"
        )
    name = _name("weighted_mean", per, getattr(w, "__name__", "w"), default=False)
    return _weighted(name, w, per, flag("weighted_mean", "nan_safe", nan_safe))


def _weighted(
    name: str, w: Callable[[jax.Array], jax.Array], per: Per, nan_safe: bool, private: bool = False
) -> Derived:
    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        norms = group_norms(found, groups)
        finite = jnp.all(jnp.isfinite(jnp.stack(norms)), 0) if nan_safe else None
        safe = norms if finite is None else [jnp.where(finite, n, 0) for n in norms]
        weights: dict[int, jax.Array] = {}
        for group, norm in zip(groups, safe, strict=True):
            weight = _weights(w, norm) / jnp.asarray(found.count, norm.dtype)
            own = weight if finite is None else jnp.where(finite, weight, 0)
            weights |= dict.fromkeys(group, own)
        return found.weighted([weights[i] for i in range(len(weights))], finite)

    joins = MEANS if private else None
    kind: Any = {"reweights": True, "private": private, "joins": joins}
    return Derived(name, combine, (NORMS,), "gradient", per, **kind)


def _weights(w: Callable[[jax.Array], jax.Array], norm: jax.Array) -> jax.Array:
    """The weights [B], a real array; else ValueError."""
    made: Any = w(norm)
    if not isinstance(made, jax.Array | np.ndarray):
        said = repr(made)
    else:
        said = f"{made.dtype}{list(made.shape)}"
        if made.shape == norm.shape and not jnp.iscomplexobj(made):
            return jnp.asarray(made)
    raise ValueError(
        f"weights must be one for each example, a real array {list(norm.shape)}; w made {said}"
    )


def _name(statistic: str, per: Per, *arguments: str, default: bool = True) -> str:
    """The statistic as it was called, so that two of a kind have names of their own."""
    grouped = [] if per == "global" else [repr(per) if isinstance(per, str) else "per=..."]
    called = ", ".join([*grouped, *arguments] if default else [*arguments, *grouped])
    return f"{statistic}({called})" if called else statistic


def _added(arrays: Sequence[jax.Array]) -> jax.Array:
    return jnp.sum(jnp.stack(arrays), 0)
