"""Which statistics an optimizer needs: its `update` takes them by name, and says which it lacks.

Whether an optimizer goes down: tried on single elements, with a gradient and its opposite.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import optax
from jax import Array

from hlo_surgery.estimators import BatchSize
from hlo_surgery.optimizers.learning_rates import LearningRate, stepping
from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.measures.measures import MeanOf
from hlo_surgery.statistics.derived import Derived, Statistic, parts_of

# What a step passes by keyword; the statistics that an optimizer takes of that.
Given = Mapping[str, Any]
Needed = Mapping[str, Statistic]
# Schedules often begin with a learning rate of zero, and noise is small beside the gradient of so
# many examples.
STEPS, SIZE = 2, 2**20


def climbing(optimizer: Any, statistics: Needed, params: Any) -> list[bool]:
    """Of each parameter whether the optimizer's first steps follow a larger gradient up.

    What does not depend on the gradient, such as noise and the decay of weights, is the same for
    its opposite. Empty where the optimizer cannot be tried, as it takes no such parameters or is
    not known before run time.
    """
    try:
        with jax.ensure_compile_time_eval():
            small = jax.tree.map(lambda p: jnp.ones((1,) * jnp.ndim(p), jnp.result_type(p)), params)
            up, down = (_moved(optimizer, statistics, small, sign) for sign in (1, -1))
            return [bool(jnp.real(u - d).sum() > 0) for u, d in zip(up, down, strict=True)]
    except Exception:
        return []


def _moved(optimizer: Any, statistics: Needed, params: Any, sign: int) -> list[Array]:
    """The sum of the first updates by a gradient of `sign` everywhere."""
    update: Any = optax.with_extra_args_support(optimizer).update
    gradient = jax.tree.map(lambda p: jnp.full_like(p, sign), params)
    # Of examples that are all alike.
    given = {
        name: jax.tree.map(s.phi, gradient) if isinstance(s, MeanOf) else gradient
        for name, s in statistics.items()
    }
    state, total = optimizer.init(params), jax.tree.map(jnp.zeros_like, params)
    for _ in range(STEPS):
        updates, state = update(
            gradient, state, params, **given, grad=gradient, batch_size=SIZE, value=0.0
        )
        total = jax.tree.map(jnp.add, total, updates)
    return jax.tree.leaves(total)


Update = Callable[..., tuple[Any, Any]]


class MissingStatistic(TypeError):
    """An optimizer's `update` was called without a statistic that it needs."""

    def __init__(self, name: str, statistic: Statistic) -> None:
        super().__init__(
            f"update needs the statistic {statistic.name}: pass {name}=..., as "
            "hlo_surgery.value_and_grad with "
            "statistics=hlo_surgery.optimizers.required_statistics(optimizer, params) returns it, "
            "or let hlo_surgery.train_step do it"
        )
        self.name, self.statistic = name, statistic


class StatisticsTransformation(optax.GradientTransformationExtraArgs):
    """A gradient transformation with the statistics that its `update` takes as keywords."""

    required_statistics: Needed


def with_statistics(
    statistics: Needed,
    init: Callable[[Any], Any],
    update: Update,
) -> StatisticsTransformation:
    """The transformation whose `update(updates, state, params, given)` finds these statistics in
    the dict `given`.

    `given` also has whatever else was passed by keyword. Raises MissingStatistic where one was not
    passed, and ValueError where `grad`, the gradient, is among that and the updates are not it.
    """

    def checked(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        found = taken(statistics, updates, given)
        if statistics and not is_gradient(updates, given):
            refuse_change(statistics, given)
        return update(updates, state, params, {**given, **found})

    return _needing(statistics, init, checked)


def _needing(statistics: Needed, *made_of: Any) -> StatisticsTransformation:
    made = StatisticsTransformation(*made_of)
    made.required_statistics = dict(statistics)
    return made


def taken(statistics: Needed, updates: Any, given: Given) -> dict[str, Any]:
    """These statistics of what was given, masked as the updates are. Raises MissingStatistic where
    one was not.

    `statistics` among what was given, where it is, says what each is, and ValueError is raised
    where it is another one, and where a statistic is not like the updates.
    """
    for name, statistic in statistics.items():
        if name not in given:
            raise MissingStatistic(name, statistic)
        other = given.get("statistics", statistics).get(name, statistic)
        if other != statistic:
            raise ValueError(
                f"two parts of the optimizer need different {name}: {other.name} and "
                f"{statistic.name}"
            )
    return {name: _masked_like(s, name, updates, given[name]) for name, s in statistics.items()}


def batch_size(given: Given) -> BatchSize:
    """The number of examples that the gradient is the mean of, at run time perhaps."""
    if "batch_size" not in given:
        raise TypeError(
            "update needs batch_size=..., the number of examples that the gradient is the mean of"
        )
    return given["batch_size"]


def is_gradient(updates: Any, given: Given) -> bool:
    """Whether the updates are the arrays of `grad`, where passed, but for masked ones."""
    if "grad" not in given:
        return True

    def same(update: Any, gradient: Any) -> bool:
        return is_masked(update) or update is gradient

    try:
        return all(jax.tree.leaves(jax.tree.map(same, updates, given["grad"], is_leaf=is_masked)))
    except (TypeError, ValueError):
        return False


def refuse_change(statistics: Needed, given: Given) -> NoReturn:
    """Raises ValueError: the change would be lost, or divided by moments that are not its own, or
    would let what is private out.
    """
    names, asked = " and ".join(statistics), given.get("statistics", {})
    first = "put track_noise_scale first; " if "noise_scale" in statistics else ""
    others = [statistic for name, statistic in asked.items() if name not in statistics]
    if any(getattr(statistic, "private", False) for statistic in others):
        raise ValueError(
            f"behind private gradients an optimizer takes {names} of the examples' gradients "
            "without noise, so that "
            "its steps are not private: chain one that takes gradients alone, such as optax.adam"
        )
    raise ValueError(
        f"what comes before a part of the optimizer that takes {names} changes the gradient, and "
        f"would be lost, or divided by what is not its own: {names} is of the examples' gradients "
        f"as they are. In optax.chain {first}chain the rest behind that part, where it changes the "
        "step, "
        "or put it into the loss; clip_norm and weight_decay are options of the optimizers. "
        "To freeze parameters, "
        "use optax.multi_transform with optax.set_to_zero() for theirs"
    )


def chained(
    makers: Sequence[Any], learning_rate: LearningRate, weight_decay: LearningRate = 0.0
) -> StatisticsTransformation:
    """An optimizer: `optax.chain` of what makes directions, the first of which takes statistics,
    and of the steps along them. It says what it needs, and among what is asked which updates are
    its steps.
    """
    init, update = optax.chain(*makers, *stepping(learning_rate, weight_decay))

    def stepped(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        steps, state = update(updates, state, params, **given)
        # Behind another transformation they may turn its steps around, and are looked at as other
        # updates are.
        given.get("steps", []).extend(
            jax.tree.leaves(steps) if is_gradient(updates, given) else [None]
        )
        return steps, state

    return _needing(makers[0].required_statistics, init, stepped)


def where(tells: Any, new: Any, old: Any) -> Any:
    """A state's arrays after an update that tells something, which may show at run time; else as
    they were.
    """
    return jax.tree.map(lambda x, y: jnp.where(tells, x, y), new, old)


def zero_statistic(statistic: Statistic, params: Any) -> Any:
    """Zeros as the statistic of such gradients: means may be real where gradients are complex."""
    if parts_of(statistic):
        return _zero_numbers(statistic, params)

    def of_leaf(x: Any) -> Array:
        made = jax.eval_shape(statistic.phi, x) if isinstance(statistic, MeanOf) else jnp.asarray(x)
        return jnp.zeros(made.shape, made.dtype)

    return jax.tree.map(of_leaf, params)


def _zero_numbers(statistic: Statistic, params: Any) -> Any:
    """Zeros as the parts of a statistic: one number each, of all parameters or of every one."""
    assert isinstance(statistic, Derived)
    assert statistic.parts
    kinds = [widened(jnp.real(x)).dtype for x in jax.tree.leaves(params)]
    number = jnp.zeros((), jnp.result_type(*kinds))
    parts = statistic.parts(*[number] * len(parts_of(statistic)))
    return parts if statistic.per == "global" else jax.tree.map(lambda _: parts, params)


def is_masked(x: Any) -> bool:
    """Whether `optax.masked` has taken this leaf."""
    return isinstance(x, optax.MaskedNode)


def holds_masked(tree: Any) -> bool:
    """Whether it has taken some leaf."""
    return any(map(is_masked, jax.tree.leaves(tree, is_leaf=is_masked)))


def _masked_like(statistic: Statistic, name: str, updates: Any, found: Any) -> Any:
    """What was found without the leaves that `optax.masked` has taken from the updates. Raises
    ValueError where it is no pytree like them, and ought to be.
    """
    if isinstance(statistic, Derived) and statistic.like == "group" and statistic.per == "global":
        return found

    def fits(update: Any, own: Any) -> bool:
        return bool(parts_of(statistic)) or jnp.shape(own) == jnp.shape(update)

    wrong = (
        f"{name} is not like the gradient; it is a pytree of arrays of the same shapes, as "
        "hlo_surgery.value_and_grad returns it of the same parameters"
    )
    return without_masked(updates, found, fits, wrong)


def only_state(opt_state: Any, kind: Any, of: str) -> Any:
    """The one of a kind within an optimizer's state. Raises ValueError where there is not just one,
    `of` what says how to come by it.
    """
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, kind))
    found = [x for x in leaves if isinstance(x, kind)]
    if len(found) != 1:
        raise ValueError(f"the state has {len(found)} {of}")
    return found[0]


def without_masked(updates: Any, found: Any, fits: Callable[[Any, Any], bool], wrong: str) -> Any:
    """What was found, without what belongs to leaves that `optax.masked` has taken. Raises
    ValueError, which says what is `wrong`, where the rest does not fit the updates.
    """

    def kept(update: Any, own: Any) -> Any:
        if is_masked(update):
            return update
        if fits(update, own):
            return own
        raise ValueError

    try:
        return jax.tree.map(kept, updates, found, is_leaf=is_masked)
    except (TypeError, ValueError):
        raise ValueError(wrong) from None
