"""Dumped modules: loaded, rewritten to return statistics too, and folded, as functions can be."""

from typing import Any

import jax

from hlo_surgery.frameworks.models import as_pytrees, of_pytrees
from hlo_surgery.frameworks.nnx_models import update_models
from hlo_surgery.lowered_function import lower
from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.fold_squared_sums import fold_squared_sums as fold_in_place
from hlo_surgery.public_function import Function, public, publish
from hlo_surgery.requests.leaves import flat_array, is_array, signature, trace_context
from hlo_surgery.rewriting.gradient_function import Rewritten
from hlo_surgery.rewriting.pipeline import rewrite_module

__all__ = ["Module", "fold_squared_sums", "load", "optimize", "rewrite_module"]


def fold_squared_sums(module: Source) -> Module:
    """The module with sums of squared outer products (or the like) contracted, as `optimize` does
    for a function; results stay.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> def second_moment(w, xs):
    ...     one = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)))
    ...     return jnp.mean(jax.vmap(one, (None, 0))(w, xs) ** 2, 0)
    >>> text = jax.jit(second_moment).lower(jnp.ones((3, 2)), jnp.ones((4, 3))).as_text()
    >>> "4x3x2x" in text, "4x3x2x" in fold_squared_sums(text).text()
    (True, False)
    """
    code = mlir.clone(load(module).code)
    fold_in_place(code)
    return Module(code)


def optimize(fun: Function) -> "Optimized":
    """The same function, with sums of squares of its per-example gradients as contractions.

    What `jax.vmap(jax.grad(loss))` and a mean of squares, absolute values, signs or powers compute
    for dense layers then needs no array with a gradient for every example. It composes with `jit`;
    it cannot be differentiated.

    >>> import jax.numpy as jnp
    >>> def loss(w, x):
    ...     return jnp.sum(jnp.tanh(x @ w))
    >>> def second_moment(w, xs):
    ...     return jnp.mean(jax.vmap(jax.grad(loss), (None, 0))(w, xs) ** 2, 0)
    >>> w, xs = jnp.ones((3, 2)), jnp.ones((4, 3))
    >>> optimized = optimize(second_moment)
    >>> bool(jnp.allclose(optimized(w, xs), second_moment(w, xs)))
    True
    >>> "4x3x2x" in optimized.module(w, xs).text()
    False
    """
    if not callable(fun):
        raise TypeError(f"optimize takes a function, not {fun!r}")
    return Optimized(fun)


class Optimized:
    """A function with its sums folded. Lowered as often as `jax.jit` would trace."""

    def __init__(self, fun: Function) -> None:
        self._fun = of_pytrees(fun)
        self._folded: dict[Any, Rewritten] = {}
        self.__doc__ = getattr(fun, "__doc__", None)

    def __repr__(self) -> str:
        return f"<{getattr(self._fun, '__name__', 'a function')}, optimized>"

    @public
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's own result."""
        pytrees = as_pytrees((args, kwargs))
        leaves, tree = jax.tree.flatten(pytrees)
        arrays = [flat_array(leaf) for leaf in leaves if is_array(leaf)]
        folded = self._lookup(leaves, tree)
        outputs = folded.run(*arrays, *map(flat_array, folded.closed_over))
        result, changed = folded.returned(outputs)
        update_models((args, kwargs), pytrees, changed)
        return result

    @public
    def module(self, *args: Any, **kwargs: Any) -> Module:
        """The folded module for these arguments: its text, to save it."""
        return self._lookup(*jax.tree.flatten(as_pytrees((args, kwargs)))).module

    def _lookup(self, leaves: list[Any], tree: Any) -> Rewritten:
        key = (tree, tuple(map(signature, leaves)), trace_context())
        if key in self._folded:
            return self._folded[key]
        found = lower(self._fun, leaves, tree)
        folded = fold_squared_sums(found.module)
        made = Rewritten(folded, found.result, found.closed_over, found.shardings)
        # What is traced around one call is of no use to another.
        return made if made.closed_over else self._folded.setdefault(key, made)


publish(globals(), __all__)
