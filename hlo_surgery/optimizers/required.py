"""Which statistics an optimizer needs: its `update` takes them by name, and says so where one is missing."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from hlo_surgery.derived import Statistic
from hlo_surgery.estimators import BatchSize
from hlo_surgery.measures import MeanOf

Update = Callable[..., tuple[Any, Any]]

NOT_PASSED_ON = (
    "the optimizer needs statistics that what is wrapped around it does not pass on, or not of all examples: "
    "optax.MultiSteps accumulates the gradient alone. Use hlo_surgery.optimizers.multi_steps(optimizer, every_k), and "
    "elsewhere transformations that take extra arguments"
)


class MissingStatistic(TypeError):
    """An optimizer's `update` was called without a statistic that it needs."""

    def __init__(self, name: str, statistic: Statistic) -> None:
        super().__init__(
            f"update needs the statistic {statistic.name}: pass {name}=..., as hlo_surgery.value_and_grad with "
            f"statistics=optimizer.required_statistics returns it, or let hlo_surgery.train_step do it"
        )
        self.name, self.statistic = name, statistic


class StatisticsTransformation(optax.GradientTransformationExtraArgs):
    """A gradient transformation with the statistics that its `update` takes as keywords."""

    required_statistics: Mapping[str, Statistic]


def with_statistics(
    statistics: Mapping[str, Statistic], init: Callable[[Any], Any], update: Update
) -> StatisticsTransformation:
    """The transformation whose `update(updates, state, params, given)` finds these statistics in the dict `given`.

    `given` also has whatever else was passed by keyword. Raises MissingStatistic where one was not passed.
    """

    def checked(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        return update(updates, state, params, {**given, **taken(statistics, updates, given)})

    made = StatisticsTransformation(cast(Any, init), cast(Any, checked))
    made.required_statistics = dict(statistics)
    return made


def taken(statistics: Mapping[str, Statistic], updates: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """These statistics of what was given, masked as the updates are. Raises MissingStatistic where one was not.

    `statistics` among what was given, where it is, says what each is, and ValueError is raised where it is another one.
    """
    for name, statistic in statistics.items():
        if name not in given:
            raise MissingStatistic(name, statistic)
        other = given.get("statistics", statistics).get(name, statistic)
        if other != statistic:
            raise ValueError(f"two parts of the optimizer need different {name}: {other.name} and {statistic.name}")
    return {name: _masked_like(updates, given[name]) for name in statistics}


def batch_size(given: Mapping[str, Any]) -> BatchSize:
    """The number of examples that the gradient is the mean of, at run time perhaps."""
    if "batch_size" not in given:
        raise TypeError("update needs batch_size=..., the number of examples that the gradient is the mean of")
    return given["batch_size"]


def chained(statistics: Mapping[str, Statistic], *transformations: Any) -> StatisticsTransformation:
    """`optax.chain`, which says what it needs."""
    made = StatisticsTransformation(*optax.chain(*transformations))
    made.required_statistics = dict(statistics)
    return made


def required_statistics(optimizer: Any, params: Any) -> dict[str, Statistic]:
    """The statistics that an optimizer needs, by name: of any composition of transformations, found by asking.

    Raises ValueError where two parts need different ones of the same name, and TypeError for an `optax.MultiSteps`
    around an optimizer that needs some: it would hand on those of the last microbatch alone.

    >>> import optax
    >>> from hlo_surgery.optimizers import micro_adam
    >>> list(required_statistics(optax.chain(optax.clip(1.0), micro_adam(1e-3)), params=jax.numpy.ones(3)))
    ['second_moment']
    """
    found: dict[str, Statistic] = {}
    state = jax.eval_shape(optimizer.init, params)
    update: Any = partial(optax.with_extra_args_support(optimizer).update, batch_size=2, value=0.0)
    while True:
        try:
            given = {name: jax.eval_shape(partial(zero_statistic, s), params) for name, s in found.items()}
            jax.eval_shape(partial(update, statistics=found), params, state, params, **given)
        except MissingStatistic as missing:
            if missing.name in found or _accumulates_gradients_alone(state):
                raise TypeError(NOT_PASSED_ON) from None
            found[missing.name] = missing.statistic
        else:
            return found


def zero_statistic(statistic: Statistic, params: Any) -> Any:
    """Zeros as the statistic of such gradients: means may be real where gradients are complex."""

    def of_leaf(x: Any) -> jax.Array:
        made = jax.eval_shape(statistic.phi, x) if isinstance(statistic, MeanOf) else jnp.asarray(x)
        return jnp.zeros(made.shape, made.dtype)

    return jax.tree.map(of_leaf, params)


def _accumulates_gradients_alone(state: Any) -> bool:
    def is_accumulation(x: Any) -> bool:
        return isinstance(x, optax.MultiStepsState)

    return any(map(is_accumulation, jax.tree.leaves(state, is_leaf=is_accumulation)))


def _masked_like(updates: Any, statistic: Any) -> Any:
    """The statistic without the leaves that `optax.masked` has taken from the updates."""
    return jax.tree.map(lambda u, s: u if _is_masked(u) else s, updates, statistic, is_leaf=_is_masked)


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)
