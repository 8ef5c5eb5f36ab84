"""Aggregators of `optax.experimental`, by statistics in place of all examples' gradients.

    average_per_element_updates()                    =>    the gradient
    get_per_element_mean_and_sum_sq_diff_grads()     =>    the gradient, and B times the variance
    process(clip_examples(c), average..., adam)      =>    adam of clipped_mean(c)

Their states stay as optax makes them. An aggregator is known by the function of optax that made it,
and what that was called with by what its `update` closes over; others are refused by name.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from hlo_surgery.optimizers.required import Given, Needed, Update, batch_size, with_statistics
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.statistics.derived import Statistic
from hlo_surgery.statistics.elementwise import mean_of, mean_of_clipped_entries
from hlo_surgery.statistics.spreads import variance
from hlo_surgery.statistics.weighted import clipped_mean, clipping

AVERAGE, SPREAD = "average_per_element_updates", "get_per_element_mean_and_sum_sq_diff_grads"
REFUSED = (
    "{} takes the examples' gradients, and nothing here makes the same of statistics; of "
    "optax.experimental's aggregators there are average_per_element_updates and "
    "get_per_element_mean_and_sum_sq_diff_grads, alone, first in optax.chain, or in process behind "
    "optax.identity, or, of averages, behind optax.clip, optax.stateless_with_tree_map of an "
    "elementwise function of the gradient, or hlo_surgery.optimizers.clip_examples. Or give "
    "optimizer.update what hs.grad(loss, statistics=hs.per_example()) returns"
)


class Aggregate(NamedTuple):
    """What an aggregator needs, and makes of the gradient: `update(gradient, state, params,
    given)`.
    """

    statistics: Needed
    update: Update


def clip_examples(max_norm: float) -> optax.GradientTransformation:
    """Scales each example's gradient down to norm `max_norm` at most, and to zero where it is not
    finite: what `optax.experimental.aggregating.process` takes as its preprocessor, of arrays
    `[B, *parameter]`.

    In `hlo_surgery.train_step` it is the statistic `clipped_mean`, and no such array is made.

    >>> updates, _ = clip_examples(2.0).update(jnp.array([-1.0, 3.0]), optax.EmptyState())
    >>> updates.tolist()
    [-1.0, 2.0]
    """
    statistic = clipped_mean(max_norm)

    def update_fn(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norms = jax.vmap(optax.tree.norm)(widened_tree(updates))
        weights = clipping(statistic.name, max_norm)(norms)

        def scaled(g: jax.Array) -> jax.Array:
            w, finite = (x.reshape(-1, *[1] * (g.ndim - 1)) for x in (weights, jnp.isfinite(norms)))
            return jnp.where(finite, g * w.astype(g.dtype), 0)

        return jax.tree.map(scaled, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


def of_statistics(optimizer: Any) -> Any:
    """The optimizer; of an aggregator the transformation of the mean gradient that makes the same,
    by statistics. Raises TypeError for one that is not known.
    """
    if not _is_aggregator(optimizer):
        return optimizer
    statistics, update = _aggregate(optimizer)
    return with_statistics(statistics, optimizer.init, update)


def _is_aggregator(transformation: Any) -> bool:
    name, closed_over = _made_by(transformation)
    if name == "chain":
        return any(map(_is_aggregator, _parts(closed_over)))
    return type(transformation).__name__ == "Aggregator" or name in MAKERS


def _parts(of_chain: Given) -> list[Any]:
    """What is chained, but for its states."""
    return [optax.GradientTransformation(optax.init_empty_state, u) for u in of_chain["update_fns"]]


def _made_by(transformation: Any) -> tuple[str, Given]:
    """The name of the function of optax that made it, and what its `update` closes over."""
    update = transformation.update
    module, name = (str(getattr(update, of, "")) for of in ("__module__", "__qualname__"))
    if not module.startswith(("optax.", __name__)) or not inspect.isfunction(update):
        return "", {}
    return name.partition(".<locals>")[0], inspect.getclosurevars(update).nonlocals


def _aggregate(transformation: Any) -> Aggregate:
    name, closed_over = _made_by(transformation)
    if not _is_aggregator(transformation):
        return Aggregate(
            {}, lambda g, state, params, given: transformation.update(g, state, params)
        )
    if name not in MAKERS:
        raise TypeError(REFUSED.format(_named(transformation)))
    if closed_over.get("per_elt_axis", 0) not in (0, (0,), [0]):
        raise TypeError(
            f"{name} takes per_elt_axis=0, where examples lie, not {closed_over['per_elt_axis']!r}"
        )
    return MAKERS[name](closed_over)


def _named(transformation: Any) -> str:
    update = transformation.update
    name = getattr(update, "__qualname__", type(update).__name__)
    return _made_by(transformation)[0] or f"{update.__module__}.{name}"


def _average(_: Given) -> Aggregate:
    return Aggregate({}, lambda gradient, state, params, given: (gradient, state))


def _chain(closed_over: Given) -> Aggregate:
    """An aggregator, and transformations of what it makes."""
    first, *others = _parts(closed_over)
    if not _is_aggregator(first):
        raise TypeError(REFUSED.format("an aggregator that is not the first in optax.chain"))
    of_first = _aggregate(first)

    def update(gradient: Any, states: Any, params: Any, given: Given) -> tuple[Any, Any]:
        updates, *following = of_first.update(gradient, states[0], params, given)
        for state, each in zip(states[1:], others, strict=True):
            updates, new = each.update(updates, state, params)
            following.append(new)
        return updates, tuple(following)

    return Aggregate(of_first.statistics, update)


def _spread(closed_over: Given) -> Aggregate:
    """The mean, and the sum of squared differences from it."""
    if closed_over.get("accumulation_steps", 1) != 1:
        raise TypeError(
            f"{SPREAD} takes accumulation_steps=1: the statistics are of the whole batch; for less "
            "memory give the train step strategy='loop'"
        )

    def update(gradient: Any, state: Any, params: Any, given: Given) -> tuple[Any, Any]:
        size = batch_size(given)
        spread = jax.tree.map(lambda g, v: (v * size).astype(g.dtype), gradient, given["variance"])
        return (gradient, {"sum_sq_diff_grads": spread, "sample_size": size}), state

    return Aggregate({"variance": variance(unbiased=False)}, update)


def _process(closed_over: Given) -> Aggregate:
    """What is made of each example's gradient, of these together, and of that."""
    aggregate, each = _aggregate(closed_over["aggregator"]), _of_each(closed_over["preprocessor"])
    after = optax.with_extra_args_support(closed_over["postprocessor"])
    if each and aggregate.statistics:
        raise TypeError(REFUSED.format(f"{SPREAD} behind {_named(closed_over['preprocessor'])}"))

    def update(gradient: Any, states: Any, params: Any, given: Given) -> tuple[Any, Any]:
        before, within, behind = states
        mean = next((given[name] for name in each), gradient)
        made, within = aggregate.update(mean, within, params, given)
        updates, told = made if closed_over["aggregator_has_aux"] else (made, {})
        updates, behind = lax.cond(
            optax.tree.get(within, "ready", True),
            lambda: after.update(updates, behind, params, **told),
            lambda: (jax.tree.map(jnp.zeros_like, updates), behind),
        )
        return updates, (before, within, behind)

    return Aggregate({**each, **aggregate.statistics}, update)


def _of_each(preprocessor: Any) -> dict[str, Statistic]:
    """The mean over the examples of what it makes of one's gradient; nothing of the gradient
    itself.
    """
    name, closed_over = _made_by(preprocessor)
    match name:
        case "identity":
            return {}
        case "clip":
            return {"clipped_entries": mean_of_clipped_entries(closed_over["max_delta"])}
        case "stateless_with_tree_map":
            function = closed_over["f"]
            # Statistics of the gradients know nothing of the parameter.
            return {"mean_of_each": mean_of(lambda g: function(g, None))}
        case "clip_examples":
            return {"clipped_mean": closed_over["statistic"]}
        case _:
            raise TypeError(REFUSED.format(f"process behind {_named(preprocessor)}"))


MAKERS: Mapping[str, Callable[[Given], Aggregate]] = {
    AVERAGE: _average,
    SPREAD: _spread,
    "process": _process,
    "chain": _chain,
}
