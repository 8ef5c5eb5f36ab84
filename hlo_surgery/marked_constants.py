"""Constant: what statistics take as given, though examples and parameters made it."""

from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

from hlo_surgery.passes.dataflow.ancestors import CONSTANT


def constant(x: Any) -> Any:
    """The arrays of x, no gradient passing through them, as a constant of the batch.

    Like `jax.lax.stop_gradient`, which leaves nothing in a module: what a loss makes of all
    examples, such as advantages normalised over the batch, mixes them where a parameter reaches it,
    and is refused. Marked so, it may stand in every example's term. The gradient of example b is
    then that of its own term with x as it is in this batch, and the plan lists it.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> def loss(w, x):
    ...     scores = x @ w
    ...     weights = hs.constant((scores - scores.mean()) / (scores.std() + 1))
    ...     return -jnp.mean(weights * scores)
    >>> f = hs.grad(loss, statistics=hs.norms())
    >>> gradient, norms = f(jnp.ones(2), jnp.array([[0.0, 1.0], [3.0, 0.0]]))
    >>> norms.tolist()
    [0.5, 1.5]
    """
    return jax.tree.map(_held, x)


def _held(x: Any) -> Any:
    return _marked(lax.stop_gradient(x))


@custom_vmap
def _marked(x: Any) -> Any:
    return lax.composite(lambda y: y, name=CONSTANT)(x)


@_marked.def_vmap
def _marked_of_many(_: int, is_batched: Any, x: Any) -> tuple[Any, Any]:
    """JAX has no rule for composites; the same mark is right of many at once."""
    return _marked(x), is_batched[0]
