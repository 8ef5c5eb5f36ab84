"""The Python API: gradient functions that also return statistics of the examples' gradients."""

import operator
from collections.abc import Sequence
from typing import Any, Unpack

import jax

from hlo_surgery.frameworks.models import differentiated
from hlo_surgery.plan import Plan
from hlo_surgery.public_function import Function
from hlo_surgery.requests.in_axes import batch_keys
from hlo_surgery.requests.options import PlanningOptions
from hlo_surgery.requests.request import LossReduction, OnMixing
from hlo_surgery.rewriting.asked_function import AskedFunction, Pick, all_of_it
from hlo_surgery.rewriting.gradient_function import WithStatistics, refuse_others
from hlo_surgery.rewriting.pipeline import check_planning, explain_module
from hlo_surgery.statistics.derived import Derived, Statistics, named


def grad(
    fun: Function,
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
    - `segments`: of rows that ids tell apart, as of graphs: a function of f's arguments that
      returns for each batch argument a pytree prefix of ids, axes or None (`crossed`).
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
    how = (loss_reduction, on_mixing, is_real, rows_per_example, segments, planning)
    asked = (gradient_fun, _gradient(has_aux), batch, in_axes, statistics, *how)
    return WithStatistics(AskedFunction(*asked))


def value_and_grad(
    fun: Function,
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
    how = (loss_reduction, on_mixing, is_real, rows_per_example, segments, planning)
    asked = (gradient_fun, operator.itemgetter(1), batch, in_axes, statistics, *how)
    return WithStatistics(AskedFunction(*asked, value_of(has_aux)))


def rewrite(
    grad_fun: Function,
    *,
    batch_argnums: int | Sequence[int] | None = None,
    batch_argnames: str | Sequence[str] | None = None,
    in_axes: Any = 0,
    statistics: Statistics,
    gradients: Pick | None = None,
    loss: Pick | None = None,
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
    for name, pick, place in (("gradients", gradients, 1), ("loss", loss, 0)):
        if pick is not None and not callable(pick):
            raise TypeError(
                f"{name} is {pick!r}; it is a function of what grad_fun returns, such as lambda "
                f"outputs: outputs[{place}]"
            )
    batch = batch_keys(batch_argnums, batch_argnames)
    how = (loss_reduction, on_mixing, is_real, rows_per_example, segments, planning)
    asked = (grad_fun, gradients or all_of_it, batch, in_axes, statistics, *how)
    return WithStatistics(AskedFunction(*asked, loss))


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


def _gradient(has_aux: bool) -> Pick:
    """Where `jax.grad` returns the gradient."""
    return lambda outputs: outputs[0] if has_aux else outputs


def value_of(has_aux: bool) -> Pick:
    """Where `jax.value_and_grad` returns the loss."""
    return lambda outputs: outputs[0][0] if has_aux else outputs[0]
