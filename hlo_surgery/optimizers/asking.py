"""What an optimizer needs, found by asking: any composition says so when its `update` is called."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import optax

from hlo_surgery.optimizers.descent import climbing
from hlo_surgery.optimizers.required import MissingStatistic, zero_statistic
from hlo_surgery.statistics.derived import Statistic

NOT_PASSED_ON = (
    "the optimizer needs statistics that what is wrapped around it does not pass on, or not of "
    "all examples: "
    "optax.MultiSteps accumulates the gradient alone. Use "
    "hlo_surgery.optimizers.multi_steps(optimizer, every_k), and "
    "elsewhere transformations that take extra arguments"
)
TWICE = (
    "the steps of an optimizer are turned around behind it, so that they climb, as where a second "
    "learning rate is "
    "applied: an optimizer has its own. To chain clipping and noise with another optimizer use "
    "hlo_surgery.optimizers.private_gradient, which has none, or dp_adam; to climb, negate the loss"
)
NEVER = (
    "the updates go along the gradient, so that they climb: chain optax.scale_by_learning_rate or "
    "an optimizer behind "
    "private_gradient, and give parameters that optax.masked leaves out a transformation of their "
    "own, such as "
    "optax.set_to_zero(), with optax.multi_transform; to climb, negate the loss"
)

# By their states, the transformations of optax that take more than a step has.
UNDRIVEN = {
    "HutchinsonState": "optax.contrib.sophia",
    "LookaheadState": "optax.lookahead",
    "SAMState": "optax.contrib.sam",
    "ScaleByBacktrackingLinesearchState": "optax.scale_by_backtracking_linesearch",
    "ScaleByZoomLinesearchState": "optax.lbfgs with its line search",
}
TAKES_MORE = (
    "{} takes more than a step has, the gradient at the parameters: the loss itself, gradients at "
    "others, or fast and slow parameters; use another optimizer, or write its loop around "
    "hlo_surgery.value_and_grad"
)


class Answer(NamedTuple):
    """What asking has shown. Of each array of updates: whether it is the gradient itself, and
    whether it is no step.

    `made_steps`: among the transformations are optimizers of this package, and updates that are not
    as they made them are no steps.
    """

    statistics: dict[str, Statistic]
    is_gradient: list[bool]
    is_changed: list[bool]
    made_steps: bool


def required_statistics(optimizer: Any, params: Any) -> dict[str, Statistic]:
    """The statistics that an optimizer needs, by name: of any composition of transformations, found
    by asking.

    Raises ValueError where two parts need different ones of the same name, where what comes before
    a part would be lost, and where a second learning rate is applied, and TypeError for an
    `optax.MultiSteps` around an optimizer that needs some: it would hand on those of the last
    microbatch alone, and for one that takes the loss itself or several gradients a step.

    >>> import optax
    >>> from hlo_surgery.optimizers import micro_adam
    >>> optimizer = optax.chain(micro_adam(1e-3), optax.clip(1.0))
    >>> list(required_statistics(optimizer, params=jax.numpy.ones(3)))
    ['second_moment']
    """
    return _stepping_once(optimizer, params).statistics


def statistics_of_steps(optimizer: Any, params: Any) -> dict[str, Statistic]:
    """As `required_statistics`, of an optimizer whose updates are added to the parameters:
    ValueError if they climb.
    """
    answer = _stepping_once(optimizer, params)
    private = any(getattr(statistic, "private", False) for statistic in answer.statistics.values())
    if (answer.statistics or answer.made_steps) and any(answer.is_gradient):
        raise ValueError(NEVER)
    if private and not answer.made_steps and _climbs(optimizer, answer, params):
        raise ValueError(NEVER)
    return answer.statistics


def _stepping_once(optimizer: Any, params: Any) -> Answer:
    answer = asked(optimizer, params)
    if answer.made_steps and _climbs(optimizer, answer, params):
        raise ValueError(TWICE)
    return answer


def asked(optimizer: Any, params: Any) -> Answer:
    """The statistics that `update` calls for, in turn, and what it then makes of the gradient."""
    found: dict[str, Statistic] = {}
    state = jax.eval_shape(optimizer.init, params)
    _refuse_undriven(state)
    while True:
        try:
            return _answer(optimizer, found, state, params)
        except MissingStatistic as missing:
            if missing.name in found or _accumulates_gradients_alone(state):
                raise TypeError(NOT_PASSED_ON) from None
            found[missing.name] = missing.statistic


def _answer(optimizer: Any, statistics: Mapping[str, Statistic], state: Any, params: Any) -> Answer:
    update: Any = partial(optax.with_extra_args_support(optimizer).update, batch_size=2, value=0.0)
    steps: list[Any] = []
    answers: list[Answer] = []

    def answered(gradient: Any, state: Any, params: Any, given: Any) -> Any:
        updates, _ = update(
            gradient, state, params, grad=gradient, statistics=statistics, steps=steps, **given
        )
        leaves = jax.tree.leaves(updates)
        gradients, made = (set(map(id, jax.tree.leaves(x))) for x in (gradient, steps))
        itself, known = [id(x) in gradients for x in leaves], gradients | made
        answers.append(
            Answer(dict(statistics), itself, [id(x) not in known for x in leaves], bool(steps))
        )
        return updates

    given = {
        name: jax.eval_shape(partial(zero_statistic, s), params) for name, s in statistics.items()
    }
    jax.eval_shape(answered, params, state, params, given)
    return answers[0]


def _climbs(optimizer: Any, answer: Answer, params: Any) -> bool:
    """Whether updates climb that are neither the gradient itself nor as an optimizer made them."""
    changed = answer.is_changed
    return any(changed) and any(
        c and up
        for c, up in zip(changed, climbing(optimizer, answer.statistics, params), strict=False)
    )


def _refuse_undriven(state: Any) -> None:
    """Raises TypeError where a part of the optimizer takes what no step has."""

    def is_undriven(x: Any) -> bool:
        return type(x).__name__ in UNDRIVEN

    for part in filter(is_undriven, jax.tree.leaves(state, is_leaf=is_undriven)):
        raise TypeError(TAKES_MORE.format(UNDRIVEN[type(part).__name__]))


def _accumulates_gradients_alone(state: Any) -> bool:
    def is_accumulation(x: Any) -> bool:
        return isinstance(x, optax.MultiStepsState)

    return any(map(is_accumulation, jax.tree.leaves(state, is_leaf=is_accumulation)))
