"""The gradient noise scale: how much of a batch's gradient is noise, and how much signal."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from hlo_surgery.estimators import NoiseScale
from hlo_surgery.passes.measures.moments import unbiased
from hlo_surgery.passes.terms.scaling import joint_norm
from hlo_surgery.statistics.derived import Derived, Groups, Per, called
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.weighted.weights import NORMS, group_norms


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
    gradient; groups as in `norms`.

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

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        means, made = found.mean(), list[jax.Array]()
        for group, norms in zip(groups, group_norms(found, groups), strict=True):
            made += _parts(norms, [means[i] for i in group], found.count)
        return made

    name = called("noise_scale", per)
    return Derived(
        name, combine, (NORMS,), "group", per, about_mean=True, least=2, parts=NoiseScale
    )


def _parts(norms: jax.Array, means: Sequence[jax.Array], count: jax.Array | int) -> NoiseScale:
    """Of a group: the norm of each example's gradient [B], and its mean gradients."""
    squares = jnp.sum(jnp.square(norms)) / count
    mean = jnp.square(joint_norm([NORMS.of(g[None]) for g in means]))[0]
    variance = (squares - mean) * unbiased(count)
    return NoiseScale(variance, mean - variance / count)
