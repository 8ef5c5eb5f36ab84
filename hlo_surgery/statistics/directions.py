"""Directions in which the examples' gradients lie: singular vectors of all of them.

Functions of one example's whole gradient, or of one parameter's, summed over the examples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.emit.export import as_asked
from hlo_surgery.passes.ir.constants import summable, wide_dtype, widened
from hlo_surgery.passes.measures.measures import Defined, Gram, Phi, TakingCost
from hlo_surgery.passes.measures.moments import SUMS, Join
from hlo_surgery.statistics.derived import Arrays, Derived, Found, Groups, integer
from hlo_surgery.statistics.weighted import NORMS, group_grams, group_norms


class TopDirections(NamedTuple):
    """`singular_values`: [k], the largest first. `directions`: a pytree like the gradient, with the
    k of them in front of each array.
    """

    singular_values: Any
    directions: Any


@dataclass(frozen=True)
class SumOf(Defined):
    """The sum over the examples of a function of one example's gradient, of any shape; it is given
    the gradient in at least float32.
    """

    join: ClassVar[Join | None] = SUMS
    name: str
    function: Phi

    def each(self, gradient: Array, mean: Array | None) -> Array:
        """The function of it."""
        return summable(self.function(widened(gradient)))

    def taking(self, kind: jax.ShapeDtypeStruct) -> TakingCost:
        """What it returns is held until it is summed, as that of a contraction is."""
        made = jax.eval_shape(lambda gradient: self.each(gradient, None), kind)
        return TakingCost(held=made.size * made.dtype.itemsize)

    def whole(self, taken: Array, count: Any) -> Array:
        """The sum."""
        return taken


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
    count = integer("top_directions", "k >= 1, such as 3", k, 1)

    def combine(found: Found, groups: Groups) -> Arrays:
        values, weights = _singular(found, groups, count)
        sums = [found.weighted([w] * len(groups[0])) for w in weights]
        return [values, *(jnp.stack(each) for each in zip(*sums, strict=True))]

    def of_tree(gradient: Any) -> Derived:
        returns = TopDirections("", jax.tree.map(lambda _: "", gradient))
        own: Any = {"like": "own", "reweights": True, "least": count, "returns": returns}
        return Derived(name, combine, measures, **own)

    name, measures = f"top_directions({count})", (Gram(), NORMS)
    return Derived(name, combine, measures, reweights=True, least=count, of_tree=of_tree)


def _singular(found: Found, groups: Groups, k: int) -> tuple[Array, Arrays]:
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


def _signed(vectors: Array) -> Array:
    """Each column with the sign by which its largest entry is positive."""
    places = jnp.argmax(jnp.abs(vectors), 0)
    return vectors * jnp.sign(jnp.take_along_axis(vectors, places[None], 0))


def sum_of(fn: Callable[[Any], Any], per: Literal["parameter", "global"] = "parameter") -> Derived:
    """The sum over the examples of `fn(g_b)`, any JAX function of one example's gradient.

    With `per="parameter"` fn takes the gradient of one parameter, of the parameter's shape, and
    returns an array of any shape; the result is a pytree like the gradient. With `per="global"` it
    takes the whole gradient of the example, a pytree as `jax.grad` returns (of a dumped module a
    dict by the outputs' names), and returns a pytree of arrays, which the result is like.

    Gradients come in at least float32, and sums are at least float32 or int32. Every example
    counts, one that reaches a parameter nowhere with fn of zeros; padding does not. Gradients are
    made as for `mean_of`: all at once, or a few at a time, where fn runs under `jax.vmap`. Raises
    TypeError where fn is no function, or does not return what is said above.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
    >>> f = hs.grad(loss, statistics=hs.sum_of(lambda g: jnp.outer(g, g)))
    >>> f(jnp.ones(2), jnp.eye(2))[1].tolist()  # of the gradients (2, 0) and (0, 2)
    [[4.0, 0.0], [0.0, 4.0]]
    """
    name = f"sum_of({getattr(fn, '__name__', 'fn')})"
    if not callable(fn):
        raise TypeError(f"sum_of takes a function of one example's gradient, not {fn!r}")
    if per == "parameter":

        @as_asked
        def of_parameter(g: Array) -> Array:
            made = fn(g)
            if not jax.tree_util.all_leaves([made]):
                raise TypeError(
                    f"the function of sum_of returned {type(made).__name__}; it returns one array, "
                    "or with per='global' a pytree of arrays"
                )
            return jnp.asarray(made)

        measure = SumOf(name, of_parameter)
        return Derived(name, lambda found, _: found.of(measure), (measure,), "group", per)
    if per != "global":
        raise ValueError(
            f"sum_of has per='parameter' or per='global', not {per!r}; with 'global' fn may take "
            "of the gradient what it likes"
        )
    return Derived(
        name, per=per, wholes=True, of_tree=lambda gradient: _of_tree(name, fn, gradient)
    )


def _of_tree(name: str, fn: Callable[[Any], Any], gradient: Any) -> Derived:
    """The sum of a function of such a gradient."""
    tree = jax.tree.structure(gradient)
    returns = jax.eval_shape(
        fn, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide_dtype(x.dtype)), gradient)
    )
    if not jax.tree.leaves(returns):
        raise TypeError(f"{name} is made of arrays, and its function returns none: {returns!r}")

    @as_asked
    def of_one(gradients: Arrays) -> Any:
        return jax.tree.map(jnp.asarray, fn(tree.unflatten(gradients)))

    def combine(found: Found, groups: Groups) -> Arrays:
        return jax.tree.leaves(found.summed(of_one))

    return Derived(
        name, combine, like="own", per="global", wholes=True, joins=SUMS, returns=returns
    )
