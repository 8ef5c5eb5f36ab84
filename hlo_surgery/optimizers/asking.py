"""What an optimizer needs, found by asking: any composition says so when its `update` is called.

Accumulation: an optimizer that steps every k microbatches, with the statistics of them all.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from hlo_surgery.optimizers.aggregators import of_statistics
from hlo_surgery.optimizers.learning_rates import check_optimizer
from hlo_surgery.optimizers.required import (
    Given,
    MissingStatistic,
    Needed,
    batch_size,
    climbing,
    is_gradient,
    taken,
    zero_statistic,
)
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.requests.options import positive_integer
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
OF_EXAMPLES = (
    "optax.contrib.differentially_private_aggregate, which optax.contrib.dpsgd has, takes all "
    "examples' gradients, and of their mean it would take the first axis for the examples: use "
    "hlo_surgery.optimizers.private_gradient in its place, or dp_sgd"
)
AGGREGATORS = "give aggregators of optax.experimental as they are, or first in optax.chain"
OTHER_SHAPES = (
    "the updates are not shaped as the parameters are: the optimizer takes all examples' "
    f"gradients, as aggregators do; {AGGREGATORS}"
)
NOT_TAKEN = (
    "a part of the optimizer does not take what else a step tells, as the batch's size; "
    f"{AGGREGATORS}"
)
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
    optimizer = of_statistics(optimizer)
    answer = asked(optimizer, params)
    if answer.made_steps and _climbs(optimizer, answer, params):
        raise ValueError(TWICE)
    return answer


def asked(optimizer: Any, params: Any) -> Answer:
    """The statistics that `update` calls for, in turn, and what it then makes of the gradient."""
    found: dict[str, Statistic] = {}
    state = jax.eval_shape(optimizer.init, params)
    kinds = _kinds(state)
    if "DifferentiallyPrivateAggregateState" in kinds:
        raise TypeError(OF_EXAMPLES)
    for kind in UNDRIVEN.keys() & kinds:
        raise TypeError(TAKES_MORE.format(UNDRIVEN[kind]))
    while True:
        try:
            return _answer(optimizer, found, state, params)
        except MissingStatistic as missing:
            if missing.name in found or "MultiStepsState" in kinds:
                raise TypeError(NOT_PASSED_ON) from None
            found[missing.name] = missing.statistic


def _answer(optimizer: Any, statistics: Needed, state: Any, params: Any) -> Answer:
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
    try:
        updates = jax.eval_shape(answered, params, state, params, given)
    except TypeError as problem:
        if "unexpected keyword" not in str(problem):
            raise
        raise TypeError(NOT_TAKEN) from problem
    shapes = (list(map(jnp.shape, jax.tree.leaves(tree))) for tree in (updates, params))
    if not all(map(tuple.__eq__, *shapes)):
        raise TypeError(OTHER_SHAPES)
    return answers[0]


def _climbs(optimizer: Any, answer: Answer, params: Any) -> bool:
    """Whether updates climb that are neither the gradient itself nor as an optimizer made them."""
    if not any(answer.is_changed):
        return False
    ups = climbing(optimizer, answer.statistics, params)
    return any(changed and up for changed, up in zip(answer.is_changed, ups, strict=False))


def _kinds(state: Any) -> list[str]:
    """The names of the types of all that a state is made of."""
    kinds = list[str]()

    def note(part: Any) -> bool:
        kinds.append(type(part).__name__)
        return False

    jax.tree.leaves(state, is_leaf=note)
    return kinds


class AccumulationState(NamedTuple):
    """How many microbatches and examples there were, the sums over them with how many examples each
    is of, and the optimizer's state.
    """

    microbatch: Array
    examples: Array
    counts: dict[str, Array]
    sums: dict[str, Any]
    inner: Any


def multi_steps(optimizer: Any, every_k: int) -> optax.GradientTransformationExtraArgs:
    """The optimizer, stepping once in `every_k` updates: by the mean gradient and statistics.

    Means over the examples, as all statistics that the optimizers here take, are weighted by
    `batch_size`, which `update` needs and may be known at run time alone: microbatches of any sizes
    make the step of the whole batch. A microbatch of fewer examples than a statistic takes, as
    the noise scale takes two, is left out of it. (`optax.MultiSteps` accumulates the gradient
    alone, and would hand on the statistics of the last microbatch.) Sums are kept in at least
    float32. Updates are zero in between. The loss itself is not handed on.
    Raises TypeError where `every_k` is no integer, such as a function of the step.

    >>> from hlo_surgery.optimizers import micro_sign_sgd
    >>> optimizer = multi_steps(micro_sign_sgd(1.0, b1=0.0), every_k=2)
    >>> state, signs = optimizer.init(0.0), (1.0, -0.5)
    >>> for sign in signs:
    ...     updates, state = optimizer.update(1.0, state, mean_sign=sign, batch_size=4)
    >>> float(updates)
    -0.25
    """
    positive_integer("every_k", every_k, "the number of microbatches of every step")
    check_optimizer(optimizer)
    optimizer = of_statistics(optimizer)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> AccumulationState:
        # All that the optimizer sees is as wide as the sums, or its state would change its type.
        wide = widened_tree(params)
        zeros = {
            name: zero_statistic(statistic, wide)
            for name, statistic in required_statistics(optimizer, wide).items()
        }
        sums = {"gradient": jax.tree.map(jnp.zeros_like, wide), **zeros}
        # Each an array of its own: states are donated.
        microbatch, examples, *counts = (jnp.zeros((), jnp.int32) for _ in range(2 + len(sums)))
        told = dict(zip(sums, counts, strict=True))
        return AccumulationState(microbatch, examples, told, sums, inner.init(wide))

    def update(updates: Any, state: Any, params: Any = None, **given: Any) -> tuple[Any, Any]:
        size = jnp.asarray(batch_size(given), jnp.int32)
        statistics = asked(optimizer, updates).statistics
        means = {"gradient": updates, **taken(statistics, updates, given)}
        # None of fewer than a statistic is defined for.
        least = {name: getattr(statistics.get(name), "least", 1) for name in means}
        own = {name: jnp.where(size >= few, size, 0) for name, few in least.items()}
        sums = {name: _added(state.sums[name], own[name], x) for name, x in means.items()}
        counts = {name: state.counts[name] + own[name] for name in means}
        examples = state.examples + size

        def step() -> tuple[Any, Any]:
            found = {name: _mean(x, counts[name], examples) for name, x in sums.items()}
            whole = _whole(given, found, examples, is_gradient(updates, given))
            wide = None if params is None else widened_tree(params)
            steps, following = inner.update(whole.pop("gradient"), state.inner, wide, **whole)
            none, *empty = jax.tree.map(jnp.zeros_like, (examples, counts, sums))
            return steps, AccumulationState(none, none, *empty, inner=following)

        def wait() -> tuple[Any, Any]:
            steps, _ = jax.eval_shape(step)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), steps)
            following = state.microbatch + 1, examples, counts, sums
            return zeros, AccumulationState(*following, inner=state.inner)

        return lax.cond(state.microbatch == every_k - 1, step, wait)

    return optax.GradientTransformationExtraArgs(init, update)


def _added(total: Any, count: Array, mean: Any) -> Any:
    """The sum, with a mean of so many examples more; of none it may be anything, NaN too."""

    def added(s: Array, x: Array) -> Array:
        return s + jnp.where(count > 0, count * x, jnp.zeros_like(x))

    return jax.tree.map(added, total, widened_tree(mean))


def _mean(total: Any, count: Array, examples: Array) -> Any:
    """A count-th; zeros of no example at all, and NaN where there are some, and none has told."""
    untold = jnp.where(examples > 0, jnp.nan, 1)
    divisor = jnp.where(count > 0, count, untold)
    return jax.tree.map(lambda s: s / divisor.astype(jnp.real(s).dtype), total)


def _whole(
    given: Given, means: Mapping[str, Any], examples: Array, unchanged: bool
) -> dict[str, Any]:
    """The gradient and what else is given, of all microbatches."""
    # What has changed the updates has also changed their mean, which is the gradient no more.
    gradient = means["gradient"] if unchanged else jax.tree.map(jnp.zeros_like, means["gradient"])
    kept = {name: x for name, x in given.items() if name != "value"}
    return {**kept, **means, "grad": gradient, "batch_size": examples}
