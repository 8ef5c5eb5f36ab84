"""Crossings: which examples met others as the program ran, where ids tell rows apart."""

from hlo_surgery.statistics.derived import Derived


def crossed() -> Derived:
    """Whether rows of each example met another's as the program ran, [B]; its other statistics are
    NaN then. All are True where the gradients of all have NaN, as where rows of nobody reach the
    sum, and where `is_real` holds what is no flag; False where `segments` is not given.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.crossed())
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [False, False]
    """
    return Derived("crossed", lambda found, groups: [found.crossed()], like="group", crossed=True)
