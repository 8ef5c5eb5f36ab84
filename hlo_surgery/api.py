"""The Python API: gradient functions that also return statistics of the examples' gradients.

Optimize: functions and modules as they are, made cheaper where they sum example by example.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax

from hlo_surgery.frameworks.models import as_pytrees, differentiated, of_pytrees
from hlo_surgery.frameworks.nnx_models import update_models
from hlo_surgery.lowered_function import lower
from hlo_surgery.module import Module
from hlo_surgery.modules import fold_squared_sums
from hlo_surgery.plan import Plan
from hlo_surgery.public_function import public
from hlo_surgery.requests.in_axes import batch_keys
from hlo_surgery.requests.leaves import (
    as_returned,
    flat_array,
    is_array,
    signature,
    trace_context,
    typed,
)
from hlo_surgery.requests.options import PlanningOptions
from hlo_surgery.requests.request import LossReduction, OnMixing
from hlo_surgery.rewriting.pipeline import check_planning, explain_module
from hlo_surgery.rewritten_function import (
    Options,
    Rewritten,
    Statistics,
    WithStatistics,
    all_of_it,
    refuse_others,
)
from hlo_surgery.statistics.derived import Derived, named


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] | None = None,
    batch_argnames: str | Sequence[str] | None = None,
    in_axes: Any = 0,
    statistics: Statistics,
    loss_reduction: LossReduction = "mean",
    on_mixing: OnMixing = "refuse",
    is_real: Any = None,
    rows_per_example: int = 1,
    segments: Any = None,
    **planning: Unpack[PlanningOptions],
) -> "WithStatistics":
    """Like `jax.grad(fun, argnums, has_aux)`, with statistics: `f(*args) == (result, stats)`.

    `f.plan(*args)` tells the strategy of each gradient, `f.module(*args)` the module, and
    `f.sensitivity(relation)` how far one example moves a clipped sum or mean.

    `result` is what `jax.grad` returns. `stats` has for each statistic a pytree like the gradient,
    or what the statistic says (for one statistic, not in a dict, that pytree itself). Leaves of a
    model that are no floats, such as functions and integers, have None for gradient; models of
    flax.nnx are taken as `flax.nnx.grad` does.

    - `batch_argnums`: the positions of the arguments whose leaves carry the examples (by default
      1); `batch_argnames`: those that are given by name.
    - `in_axes`: along which axis, as in `jax.vmap`: one int, or one entry for each batch argument,
      each a pytree prefix.
    - `statistics`: one, or a dict of them by name.
    - `loss_reduction`: whether `fun` averages ("mean") or sums ("sum") over the examples.
    - `on_mixing`: "refuse", or "contribution", which takes what is mixed as constants.
    - `is_real`: which examples are no padding, where some are: an array [B] of flags or 0/1, the
      position of an argument that is one, or a function of f's arguments, such as
      `lambda params, batch: batch["mask"]`. `fun` is then the mean, or the sum, over these alone.
    - `rows_per_example`: of pairs, and other examples of several rows one behind the other, how
      many; batch arguments have that many times B along their axes, or B.
    - `segments`: refused: rows that belong to examples by ids are not taken.
    - `planning`: how to compute, which changes no statistic: `strategy` ("auto", or a name such as
      "lift" of the table in docs/costs.md), `memory_budget` (bytes), `target` (such as "tpu:v5e"),
      `reuse_gradient` (a bool), `shards` (devices) and `autotune` (measure strategies by the first
      call), of which that page says what each does.

    As with `jax.jit`, what `fun` and the statistics close over is read when they are traced, once
    for arguments of such shapes and dtypes: pass what changes as an argument, or call f inside of
    `jax.jit` on a function that takes it as one.

    Calling f raises `Refusal` where an example's own gradient is not defined or not proved, naming
    the source line.

    >>> import jax.numpy as jnp
    >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
    >>> import hlo_surgery as hs
    >>> f = hs.grad(loss, statistics=hs.second_moment())
    >>> gradient, squares = f(jnp.ones(3), jnp.ones((4, 3)))
    >>> squares.tolist()
    [36.0, 36.0, 36.0]
    """
    check_planning(grad, planning)
    gradient_fun = differentiated(jax.grad, fun, argnums, has_aux)
    if any(isinstance(s, Derived) and s.losses for s in named(statistics).values()):
        raise ValueError(
            "per_example_losses needs a module that returns its loss; use hs.value_and_grad"
        )
    batch = batch_keys(batch_argnums, batch_argnames)
    asked = (batch, in_axes, statistics, loss_reduction, on_mixing, is_real)
    options = Options(*asked, rows_per_example, segments, planning)
    return WithStatistics(gradient_fun, _gradient(has_aux), options)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] | None = None,
    batch_argnames: str | Sequence[str] | None = None,
    in_axes: Any = 0,
    statistics: Statistics,
    loss_reduction: LossReduction = "mean",
    on_mixing: OnMixing = "refuse",
    is_real: Any = None,
    rows_per_example: int = 1,
    segments: Any = None,
    **planning: Unpack[PlanningOptions],
) -> "WithStatistics":
    """Like `jax.value_and_grad(fun, argnums, has_aux)`, with statistics:
    `f(*args) == ((value, gradient), stats)`.

    Everything else is as in `grad`.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean(w * x)
    >>> f = hs.value_and_grad(loss, statistics=hs.norms())
    >>> (value, gradient), norms = f(2.0, jnp.array([-1.0, 3.0]))
    >>> float(value), float(gradient), norms.tolist()
    (2.0, 1.0, [1.0, 3.0])
    """
    check_planning(value_and_grad, planning)
    gradient_fun = differentiated(jax.value_and_grad, fun, argnums, has_aux)
    batch = batch_keys(batch_argnums, batch_argnames)
    asked = (batch, in_axes, statistics, loss_reduction, on_mixing, is_real)
    options = Options(*asked, rows_per_example, segments, planning, _value(has_aux))
    return WithStatistics(gradient_fun, operator.itemgetter(1), options)


def rewrite(
    grad_fun: Callable[..., Any],
    *,
    batch_argnums: int | Sequence[int] | None = None,
    batch_argnames: str | Sequence[str] | None = None,
    in_axes: Any = 0,
    statistics: Statistics,
    gradients: Callable[[Any], Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    loss_reduction: LossReduction = "mean",
    on_mixing: OnMixing = "refuse",
    is_real: Any = None,
    rows_per_example: int = 1,
    segments: Any = None,
    **planning: Unpack[PlanningOptions],
) -> "WithStatistics":
    """Any function that returns gradients of a minibatch loss already, with statistics:
    `f(*args) == (outputs, stats)`.

    `gradients` picks them from what `grad_fun` returns (`lambda outputs: outputs[1]`); by default
    all of it is, and ValueError is raised where it holds more numbers than the arguments do, of
    which one must be a loss or a metric, or most of an argument plus or minus something, which is
    that argument updated. `loss` picks the loss, where `per_example_losses` could
    mean more than one number. Everything else is as in `grad`.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> def clipped_gradient(w, x):
    ...     gradient = jax.grad(lambda w: jnp.mean(jnp.exp(w * x)))(w)
    ...     return jnp.clip(gradient, -1, 1), gradient
    >>> own = lambda outputs: outputs[1]
    >>> f = hs.rewrite(clipped_gradient, batch_argnums=1, statistics=hs.norms(), gradients=own)
    >>> f(0.0, jnp.array([-1.0, 5.0]))[1].tolist()
    [1.0, 5.0]
    """
    check_planning(rewrite, planning)
    if batch_argnums is None and batch_argnames is None:
        raise TypeError(
            "rewrite needs batch_argnums=..., the positions of the arguments with examples, or "
            "batch_argnames=..., their names"
        )
    _check_picks("gradients", gradients, "lambda outputs: outputs[1]")
    _check_picks("loss", loss, "lambda outputs: outputs[0]")
    batch = batch_keys(batch_argnums, batch_argnames)
    asked = (batch, in_axes, statistics, loss_reduction, on_mixing, is_real)
    options = Options(*asked, rows_per_example, segments, planning, loss)
    return WithStatistics(grad_fun, gradients or all_of_it, options)


def explain(explained: Any, /, *args: Any, **kwargs: Any) -> Plan:
    """The plan, which prints: for each gradient its sites with lines, tail, strategy, FLOPs, bytes.
    `f.plan(*args)` is short: the strategies alone, as a pytree like the gradient.

    `explain(f, *args)` for a function made by `grad`, `value_and_grad` or `rewrite`;
    `explain(module, batch=...)` for a module, with the keywords of `rewrite_module`. Raises
    TypeError for any other function.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.second_moment())
    >>> plan = hs.explain(f, 1.0, jnp.ones(8))
    >>> plan.batch_size, [output.strategies for output in plan.outputs]
    (8, [{'second_moment': 'square'}])
    >>> f.plan(1.0, jnp.ones(8))
    'square'
    """
    if isinstance(explained, WithStatistics):
        return explained.explain(*args, **kwargs)
    refuse_others("explain", explained)
    return explain_module(explained, *args, **kwargs)


def _check_picks(name: str, pick: Any, example: str) -> None:
    """Raises TypeError for what is no function, where one is given."""
    if pick is not None and not callable(pick):
        raise TypeError(
            f"{name} is {pick!r}; it is a function of what grad_fun returns, such as {example}"
        )


def _gradient(has_aux: bool) -> Callable[[Any], Any]:
    """Where `jax.grad` returns the gradient."""
    return lambda outputs: outputs[0] if has_aux else outputs


def _value(has_aux: bool) -> Callable[[Any], Any]:
    """Where `jax.value_and_grad` returns the loss."""
    return lambda outputs: outputs[0][0] if has_aux else outputs[0]


def optimize(fun: Callable[..., Any]) -> "Optimized":
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

    def __init__(self, fun: Callable[..., Any]) -> None:
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
        outputs = [typed(*pair) for pair in zip(outputs, folded.shardings, strict=True)]
        structure = jax.tree.structure(folded.result)
        flat = jax.tree.unflatten(structure, outputs)
        result, changed = jax.tree.map(as_returned, folded.result, flat)
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
