"""Directions in which the examples' gradients lie: singular vectors of all of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hlo_surgery.counted import integer_of
from hlo_surgery.passes.measures.measures import Gram
from hlo_surgery.statistics.derived import Derived, Groups
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.weighted.weights import NORMS, group_grams, group_norms


class TopDirections(NamedTuple):
    """`singular_values`: [k], the largest first. `directions`: a pytree like the gradient, with the
    k of them in front of each array.
    """

    singular_values: Any
    directions: Any


def top_directions(k: int) -> Derived:
    """The first k right singular vectors of the matrix [B, P] that has the examples' gradients for
    rows, and its singular values: a named tuple of `singular_values` [k] and `directions`, a pytree
    like the gradient with k in front of each array. Complex parameters count as their real and
    imaginary parts, as in `gram`.

    From the inner products of all pairs of examples, whose eigenvectors are weights: a direction is
    a sum of gradients with these, so that no example's gradient is in memory where weighted sums
    need none. Of its two signs a direction has the one with which the example that has the largest
    part in it has a positive part. Squares of singular values are as exact as the inner products
    are, so that direction j is off by about `eps (s_1 / s_j)**2`, with eps of the gradient's dtype,
    float32 at least. Where s_j is below `sqrt(B eps) s_1`, which for 32 examples in float32 is
    0.2 %, it cannot be told from rounding: value and direction are zero then, as they are where
    fewer than k examples are independent. Directions of equal values are any in their plane. All is
    NaN where a gradient is not finite, or where squares of norms are out of the range of floats.

    Eigenvectors are had from the routine of the platform on which the module is rewritten, and so
    the module is for that platform.

    Raises ValueError for what is no positive k, and for a batch of fewer than k examples.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=hs.top_directions(2))
    >>> values, directions = f(jnp.ones(2), jnp.array([[0.0, 3.0], [4.0, 0.0]]))[1]
    >>> values.tolist(), directions.tolist()
    ([4.0, 3.0], [[1.0, 0.0], [0.0, 1.0]])
    """
    count = integer_of(k)
    if count is None or count < 1:
        raise ValueError(f"top_directions takes an integer k >= 1, such as 3, not {k!r}")

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        values, weights = _singular(found, groups, count)
        sums = [found.weighted([w] * len(groups[0])) for w in weights]
        return [values, *(jnp.stack(each) for each in zip(*sums, strict=True))]

    def of_tree(gradient: Any) -> Derived:
        returns = TopDirections("", jax.tree.map(lambda _: "", gradient))
        own: Any = {"like": "own", "reweights": True, "least": count, "returns": returns}
        return Derived(name, combine, measures, **own)

    name, measures = f"top_directions({count})", (Gram(), NORMS)
    return Derived(name, combine, measures, reweights=True, least=count, of_tree=of_tree)


def _singular(found: Found, groups: Groups, k: int) -> tuple[jax.Array, list[jax.Array]]:
    """The singular values [k], and for each the weights [B] of which the direction is the sum."""
    (gram,), (norms,) = group_grams(found, groups), group_norms(found, groups)
    squares, vectors = jnp.linalg.eigh(gram)
    squares, vectors = squares[::-1][:k], _signed(vectors[:, ::-1][:, :k])
    limits, largest = jnp.finfo(gram.dtype), jnp.max(norms)
    lost = squares <= found.size * limits.eps * squares[0]
    root = jnp.sqrt(jnp.where(lost, 1, squares))
    weights = jnp.where(lost, 0, vectors / root)
    # Else sums of squares have lost what is told from rounding.
    is_told = (largest == 0) | (jnp.square(largest) > limits.tiny / limits.eps)
    values = jnp.where(lost, 0, root)
    nan = jnp.asarray(jnp.nan, gram.dtype)
    return jnp.where(is_told, values, nan), list(jnp.where(is_told, weights, nan).T)


def _signed(vectors: jax.Array) -> jax.Array:
    """Each column with the sign by which its largest entry is positive."""
    places = jnp.argmax(jnp.abs(vectors), 0)
    return vectors * jnp.sign(jnp.take_along_axis(vectors, places[None], 0))
