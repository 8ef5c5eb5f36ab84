"""Dumped modules: loaded, rewritten to return statistics too, and folded."""

from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.fold_squared_sums import fold_squared_sums as fold_in_place
from hlo_surgery.public_function import publish
from hlo_surgery.rewriting.pipeline import rewrite_module

__all__ = ["Module", "fold_squared_sums", "load", "rewrite_module"]


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


publish(globals(), __all__)
