"""Functions of one example's whole gradient, or of one parameter's, summed over the examples."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.export import as_asked
from hlo_surgery.passes.ir.constants import wide_dtype
from hlo_surgery.passes.measures.measures import SumOf
from hlo_surgery.passes.measures.moments import SUMS
from hlo_surgery.statistics.derived import Derived, Groups, not_yet
from hlo_surgery.statistics.found import Found


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
        measure = SumOf(name, as_asked(lambda g: _one_array(fn(g))))
        return Derived(name, lambda found, _: found.of(measure), (measure,), "group", per)
    if per != "global":
        raise ValueError(
            f"sum_of has per='parameter' or per='global', not {per!r}; with 'global' fn may take "
            "of the gradient what it likes"
        )
    return Derived(
        name, not_yet, per=per, wholes=True, of_tree=lambda gradient: _of_tree(name, fn, gradient)
    )


def _of_tree(name: str, fn: Callable[[Any], Any], gradient: Any) -> Derived:
    """The sum of a function of such a gradient."""
    tree = jax.tree.structure(gradient)
    returns = jax.eval_shape(fn, jax.tree.map(_widened_kind, gradient))
    if not jax.tree.leaves(returns):
        raise TypeError(f"{name} is made of arrays, and its function returns none: {returns!r}")

    @as_asked
    def of_one(gradients: list[jax.Array]) -> Any:
        return jax.tree.map(jnp.asarray, fn(tree.unflatten(gradients)))

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        return jax.tree.leaves(found.summed(of_one))

    return Derived(
        name, combine, like="own", per="global", wholes=True, joins=SUMS, returns=returns
    )


def _widened_kind(kind: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(kind.shape, wide_dtype(kind.dtype))


def _one_array(made: Any) -> jax.Array:
    """Raises TypeError for what is none."""
    if not jax.tree_util.all_leaves([made]):
        raise TypeError(
            f"the function of sum_of returned {type(made).__name__}; it returns one array, or with "
            "per='global' a pytree of arrays"
        )
    return jnp.asarray(made)
