"""Eigenbases: of Kronecker factors."""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.measures.kronecker import Eigenbases, KroneckerFactors, is_factors


def eigenbases(factors: Any) -> Any:
    """The eigenvectors of each of the `KroneckerFactors` in a pytree, as `Eigenbases`: in columns,
    by increasing eigenvalues; a side that is a diagonal stays as it is, and stands for its axes.

    Raises TypeError for other leaves, such as those of a gradient.

    >>> left, right = eigenbases(KroneckerFactors(jnp.diag(jnp.array([2.0, 1.0])), jnp.eye(1)))
    >>> jnp.abs(left).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def of_one(found: Any) -> Eigenbases:
        if not isinstance(found, KroneckerFactors):
            raise TypeError(
                f"eigenbases takes KroneckerFactors in place of each parameter, not {found!r}; ask "
                "for hlo_surgery.kronecker_factors(), and pass what is found"
            )
        rank = max(side.ndim for side in found)
        return Eigenbases(
            *(side if side.ndim < rank else jnp.linalg.eigh(side)[1] for side in found)
        )

    return jax.tree.map(of_one, factors, is_leaf=is_factors)
