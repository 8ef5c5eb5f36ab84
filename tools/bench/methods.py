"""Ways to a gradient and its second moments: the plain gradient, `vmap`, and ours by strategy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.models.problem import Problem

Function = Callable[..., Any]


def with_statistics(problem: Problem, statistic: Any, **planning: Any) -> Any:
    argnums = problem.batch_argnums
    return hs.grad(problem.loss, batch_argnums=argnums, statistics=statistic, **planning)


def only(function: Function) -> Function:
    """The statistics without the gradient, as a private step uses them."""
    return lambda *args: function(*args)[1]


def each_gradient(problem: Problem) -> Function:
    """The gradients of the examples as batches of one, stacked."""

    def one(params: Any, *example: jax.Array) -> Any:
        return jax.grad(problem.loss)(params, *(leaf[None] for leaf in example))

    return jax.vmap(one, (None, *[0] * len(problem.batch_argnums)))


def by_vmap(problem: Problem) -> Function:
    """The gradient and the mean of its examples' squares, over the whole batch at once."""
    own = each_gradient(problem)

    def mean(leaf: jax.Array) -> jax.Array:
        return leaf.sum(0) / problem.batch

    def function(*args: Any) -> Any:
        gradients = own(*args)
        squares = jax.tree.map(jnp.square, gradients)
        return jax.tree.map(mean, gradients), jax.tree.map(mean, squares)

    return function


def predicted(function: Any, problem: Problem) -> float:
    """Seconds beside the plain gradient, of what the plan takes for each output."""
    plan = function.explain(*problem.structs)
    taken = [(o, strategy) for o in plan.outputs for strategy in o.strategies.values()]
    return sum(output.predicted[strategy].seconds for output, strategy in taken)
