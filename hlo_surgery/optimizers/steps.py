"""A train step: gradient, the optimizer's statistics and the update, compiled together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.core import Tracer
from jax.tree_util import keystr

from hlo_surgery.frameworks.models import (
    are_trained,
    as_given,
    as_pytrees,
    differentiated,
    split_traced,
    trained,
    with_fixed,
    with_fixed_numbers,
    with_trained,
    without_fixed_numbers,
)
from hlo_surgery.frameworks.nnx_models import changed_values, is_model, update_models, values_of
from hlo_surgery.lowered_function import named_mesh, running_here
from hlo_surgery.optimizers.aggregators import of_statistics
from hlo_surgery.optimizers.asking import statistics_of_steps
from hlo_surgery.optimizers.learning_rates import check_optimizer
from hlo_surgery.passes.measures.moments import flags_and_count
from hlo_surgery.public_function import Function
from hlo_surgery.requests.in_axes import example_count
from hlo_surgery.requests.leaves import example_shards, kind_of
from hlo_surgery.rewriting.asked_function import AskedFunction
from hlo_surgery.rewriting.gradient_function import WithStatistics
from hlo_surgery.statistics.derived import Statistic

# The parameters, or the model that has them, and the loss' other arguments, by position and name.
Given = tuple[Any, Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True, eq=False, repr=False)
class TrainStep:
    """A jitted train step; `asked`: the loss, and how its gradient is asked for. It sees over how
    many devices the examples of a call lie, which tracing would hide.
    """

    asked: AskedFunction
    optimizer: Any
    has_aux: bool
    statistics: Mapping[str, Statistic]

    def __post_init__(self) -> None:
        own = {"loss", "aux"} & set(self.statistics)
        if own:
            raise ValueError(
                f"metrics have an entry {own.pop()!r} of their own; give the statistic another name"
            )
        if not callable(self.asked.given):
            raise TypeError(
                f"the loss is {type(self.asked.given).__name__}, which is no function: it "
                "comes first, as in train_step(loss, optimizer)"
            )
        check_optimizer(self.optimizer)
        object.__setattr__(self, "optimizer", of_statistics(self.optimizer))

    @cached_property
    def _without_flags(self) -> AskedFunction:
        """What is asked, but for what tells nothing of where the examples lie."""
        return replace(self.asked, is_real=None)

    @cached_property
    def _jitted(self) -> Any:
        return jax.jit(self._traced, static_argnums=(0, 1), donate_argnums=(2, 3))

    def __call__(
        self, params: Any, opt_state: Any, *rest: Any, **named: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The parameters and the optimizer's state after the step, and the metrics."""
        given = (params, rest, named)
        pytrees = as_pytrees(given)
        shards = self._shards(pytrees)
        arrays, fixed = split_traced(pytrees[0])
        own, others = (arrays, opt_state), pytrees[1:]
        _check_not_donated((own, others))
        own = _apart(own, others)
        with running_here(self.asked.planning.get("target")):
            own = self._committed((shards, fixed), own, others)
            found = self._jitted(shards, fixed, *own, *others)
        arrays, opt_state, values, metrics = found
        update_models(given, pytrees, values)
        fixed = split_traced(with_fixed_numbers(params), is_model)[1]
        return without_fixed_numbers(with_fixed(arrays, fixed)), opt_state, metrics

    def _committed(self, static: tuple[Any, Any], own: tuple[Any, Any], others: Any) -> Any:
        """Parameters and state committed to their device, as a step returns them: else it would be
        compiled twice. Where the loss names a mesh they belong on its devices, and `jax.jit` puts
        them there.
        """
        if any(_is_committed(leaf) for leaf in jax.tree.leaves((own, others))):
            return own
        traced: Any = self._jitted.trace(*static, *own, *others)
        if named_mesh(traced.jaxpr.jaxpr) is not None:
            return own
        return jax.device_put(own, jnp.zeros(()).sharding)

    def lower(self, params: Any, opt_state: Any, *rest: Any, **named: Any) -> Any:
        """The step lowered for such arguments, or for `jax.ShapeDtypeStruct`s, ahead of time."""
        pytrees = as_pytrees((params, rest, named))
        arrays, fixed = split_traced(pytrees[0])
        return self._jitted.lower(self._shards(pytrees), fixed, arrays, opt_state, *pytrees[1:])

    def _traced(
        self, shards: int, fixed: Any, params: Any, opt_state: Any, rest: Any, named: Any
    ) -> tuple[Any, Any, list[Any], dict[str, Any]]:
        """A step on what can be traced: the parameters' arrays, the optimizer's state, what the
        variables of models hold that are among the arguments, and the metrics.
        """
        pytrees = (with_fixed(params, fixed), rest, named)
        before = [()] * len(values_of(pytrees))
        given = as_given(pytrees)
        new, opt_state, metrics = self._step(shards, given, opt_state)
        values = changed_values(before, pytrees, (new, *given[1:]))
        arrays, _ = split_traced(with_fixed_numbers(new), is_model)
        return arrays, opt_state, values, metrics

    def _step(self, shards: int, given: Given, opt_state: Any) -> tuple[Any, Any, dict[str, Any]]:
        """One step, from the arguments of the loss, with the examples on so many devices."""
        model, rest, named = given
        params = trained(model)
        self._check_floats(model, params, opt_state)
        required = statistics_of_steps(self.optimizer, params)
        size, number = self._counts(given)
        (value, gradient), found = self._gradient(required, shards)(model, *rest, **named)
        if self.asked.loss_reduction == "sum":
            gradient = jax.tree.map(lambda g: (g / number).astype(g.dtype), gradient)
        loss, aux = (value[0], {"aux": value[1]}) if self.has_aux else (value, {})
        update = optax.with_extra_args_support(self.optimizer).update
        asked: dict[str, Any] = {name: found[name] for name in required}
        asked |= {"grad": gradient, "batch_size": size, "value": loss}
        asked["batch_size_is_data"] = self.asked.is_real is not None
        try:
            updates, opt_state = update(gradient, opt_state, params, **asked)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
            self._refuse_other_state(params, opt_state, problem)
            raise
        metrics = {"loss": loss, **aux, **{name: found[name] for name in self.statistics}}
        return with_trained(model, optax.apply_updates(params, updates)), opt_state, metrics

    def _is_other_state(self, params: Any, opt_state: Any) -> bool:
        own = jax.eval_shape(self.optimizer.init, params)
        return jax.tree.structure(own) != jax.tree.structure(opt_state)

    def _refuse_other_state(self, params: Any, opt_state: Any, problem: Exception) -> None:
        """Raises ValueError where the state, by which updating has failed, is not as `init` makes
        it.
        """
        if self._is_other_state(params, opt_state):
            raise ValueError(
                "opt_state is not of this optimizer; begin with optimizer.init(params), and go on "
                "with the state that the step returns"
            ) from problem

    def _shards(self, given: Given) -> int:
        """Over how many devices the examples lie."""
        if shards := self.asked.planning.get("shards"):
            return shards
        call = self._without_flags.call(_arguments(given))
        return example_shards(call.arrays, self._without_flags.example_axes(call).axes)

    def _gradient(self, required: Mapping[str, Statistic], shards: int) -> Function:
        """f(*args) == ((value, gradient), statistics)."""
        for name in required.keys() & self.statistics.keys():
            if required[name] != self.statistics[name]:
                raise ValueError(
                    f"the optimizer needs {required[name].name} as {name!r}; name yours otherwise"
                )
        statistics = {**self.statistics, **required}
        plain = differentiated(jax.value_and_grad, self.asked.given, 0, self.has_aux)
        if not statistics:
            return lambda *args, **named: (plain(*args, **named), {})
        planning: Any = {**self.asked.planning, "shards": shards}
        return WithStatistics(
            replace(self.asked, given=plain, asked_for=statistics, planning=planning)
        )

    def _counts(self, given: Given) -> tuple[Any, Any]:
        """How many examples there are, or are real, and what makes a sum a mean: 1 where no example
        is real, NaN where flags are none.
        """
        call = self.asked.call(_arguments(given))
        axes = self.asked.example_axes(call).axes
        sizes = {f"array {i}": kind_of(call.arrays[i]).shape[axis] for i, axis in axes.items()}
        size = example_count(sizes, self.asked.rows_per_example) if sizes else None
        if size == 0:
            raise ValueError("the batch arguments hold no examples; they must hold at least one")
        if not call.flags:
            return size, size
        (flags,) = call.flags
        return jnp.sum(flags == 1, dtype=jnp.int32), flags_and_count(jnp.float32, flags)[1]

    def _check_floats(self, model: Any, params: Any, opt_state: Any) -> None:
        """Raises TypeError for what has no gradient, as integers in an optimizer's state, but where
        the state is of a model's floats.
        """
        if is_model(model):
            return
        pairs = zip(jax.tree.leaves_with_path(model), are_trained(model), strict=True)
        fixed = [own for own, has_gradient in pairs if not has_gradient]
        if fixed and self._is_other_state(params, opt_state):
            path, leaf = fixed[0]
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise TypeError(
                f"params{keystr(path)} is {kind}, and parameters are arrays of "
                "floats; a step is called as step(params, opt_state, *batch), where opt_state "
                "begins as optimizer.init of the floats alone, with None for all else, such as "
                "equinox.filter(model, equinox.is_inexact_array)"
            )


def _arguments(given: Given) -> tuple[Any, Mapping[str, Any]]:
    """Those of the loss, by position and by name."""
    model, rest, named = given
    return (model, *rest), named


def _apart(donated: Any, others: Any) -> Any:
    """With copies of arrays that occur again, as parameters do in some states, or as the target
    that they are at first: no buffer is donated twice, or used besides.
    """
    seen = set(map(id, jax.tree.leaves(others)))

    def apart(leaf: Any) -> Any:
        is_seen = isinstance(leaf, Array) and id(leaf) in seen
        seen.add(id(leaf))
        return jnp.copy(leaf) if is_seen else leaf

    return jax.tree.map(apart, donated)


def _check_not_donated(arrays: Any) -> None:
    """Raises ValueError where a step before has used them up: on several devices the runtime ends
    the process over them.
    """
    held = [x for x in jax.tree.leaves(arrays) if isinstance(x, Array)]
    if any(not isinstance(x, Tracer) and x.is_deleted() for x in held):
        raise ValueError(
            "an array of the step has been deleted: params and opt_state are donated; go on with "
            "those that the step returned, or give it copies, jax.tree.map(jnp.copy, params)"
        )


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, Tracer) or (isinstance(leaf, Array) and leaf.committed)
