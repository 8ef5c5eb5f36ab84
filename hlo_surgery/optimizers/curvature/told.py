"""Told: an optimizer's state, with the curvature that was found of a batch."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

from hlo_surgery.optimizers.required import without_masked


@runtime_checkable
class TakesCurvature(Protocol):
    """The state of a transformation that averages what it is told of the curvature."""

    def told(self, curvature: Any) -> Any:
        """The state once it knows of one more batch."""
        ...


def with_curvature(opt_state: Any, curvature: Any) -> Any:
    """The state of an optimizer, told the curvature of a batch, every few steps: of `sophia` the
    diagonal, like the gradient, as `second_moment` returns it; of `kfac` what `kronecker_factors`
    does.

    It finds the optimizer's own state within that of `optax.chain` and its like, and runs inside
    jit. Raises ValueError where the state has not exactly one that takes curvature, or where this
    is not like the parameters.

    >>> import jax.numpy as jnp
    >>> from hlo_surgery.optimizers import sophia
    >>> optimizer = sophia(0.1, b1=0.0, b2=0.0, gamma=1.0)
    >>> state = with_curvature(optimizer.init(jnp.ones(2)), jnp.array([4.0, 0.1]))
    >>> updates, state = optimizer.update(jnp.array([2.0, 2.0]), state)
    >>> updates.tolist()  # 2 / 4, and 1 at most
    [-0.05000000074505806, -0.10000000149011612]
    """
    found = [x for x in jax.tree.leaves(opt_state, is_leaf=_takes) if _takes(x)]
    if len(found) != 1:
        raise ValueError(
            f"the state has {len(found)} that take curvature, not one; it is of an optimizer with "
            "one sophia or kfac"
        )
    return jax.tree.map(lambda x: x.told(curvature) if _takes(x) else x, opt_state, is_leaf=_takes)


def _takes(x: Any) -> bool:
    return isinstance(x, TakesCurvature)


def like_parameters(momentum: Any, curvature: Any, fits: Callable[[jax.Array, Any], bool]) -> Any:
    """The curvature, masked as the parameters are. Raises ValueError where it does not fit them."""

    wrong = (
        "the curvature is not like the parameters; it is what hlo_surgery.grad finds by the "
        "same parameters: second_moment() for sophia, kronecker_factors() for kfac"
    )
    return without_masked(momentum, curvature, fits, wrong)
