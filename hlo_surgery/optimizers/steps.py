"""What a train step does: the gradient with the optimizer's statistics, and the update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hlo_surgery.api import value_and_grad
from hlo_surgery.optimizers.asking import statistics_of_steps
from hlo_surgery.optimizers.hyperparameters import check_optimizer
from hlo_surgery.passes.measures.real_examples import flags_and_count
from hlo_surgery.requests.example_shards import example_shards
from hlo_surgery.requests.in_axes import batch_positions, example_count, leaf_axes
from hlo_surgery.requests.leaves import is_array, kind_of
from hlo_surgery.requests.real_flags import flags_among
from hlo_surgery.requests.request import check_words
from hlo_surgery.requests.segments import segments_among
from hlo_surgery.statistics.derived import Statistic


@dataclass(frozen=True)
class Training:
    """What `train_step` was asked; `options` are keywords of `value_and_grad`."""

    loss: Callable[..., Any]
    optimizer: Any
    batch_argnums: int | Sequence[int]
    has_aux: bool
    statistics: Mapping[str, Statistic]
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        own = {"loss", "aux"} & set(self.statistics)
        if own:
            raise ValueError(
                f"metrics have an entry {own.pop()!r} of their own; give the statistic another name"
            )
        if not callable(self.loss):
            raise TypeError(
                f"the loss is {type(self.loss).__name__}, which is no function: it comes first, as "
                "in train_step(loss, optimizer)"
            )
        check_optimizer(self.optimizer)
        batch_positions(self.batch_argnums)
        check_words(self.options["loss_reduction"], self.options["on_mixing"])

    def step(
        self, shards: int, params: Any, opt_state: Any, *rest: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """One step, from the arguments of the loss, with the examples on so many devices."""
        _check_floats(params)
        required = statistics_of_steps(self.optimizer, params)
        (value, gradient), found = self._gradient(required, shards)(params, *rest)
        size = self._batch_size(params, *rest)
        if self.options["loss_reduction"] == "sum":
            number = self._divisor(params, *rest)
            gradient = jax.tree.map(lambda g: (g / number).astype(g.dtype), gradient)
        given = {name: found[name] for name in required}
        loss, aux = (value[0], {"aux": value[1]}) if self.has_aux else (value, {})
        update = optax.with_extra_args_support(self.optimizer).update
        given = {**given, "grad": gradient, "batch_size": size, "value": loss}
        try:
            updates, opt_state = update(gradient, opt_state, params, **given)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
            self._refuse_other_state(params, opt_state, problem)
            raise
        metrics = {"loss": loss, **aux, **{name: found[name] for name in self.statistics}}
        return optax.apply_updates(params, updates), opt_state, metrics

    def _refuse_other_state(self, params: Any, opt_state: Any, problem: Exception) -> None:
        """Raises ValueError where the state, by which updating has failed, is not as `init` makes
        it.
        """
        own = jax.eval_shape(self.optimizer.init, params)
        if jax.tree.structure(own) != jax.tree.structure(opt_state):
            raise ValueError(
                "opt_state is not of this optimizer; begin with optimizer.init(params), and go on "
                "with the state that the step returns"
            ) from problem

    def shards(self, *args: Any) -> int:
        """Over how many devices the examples lie."""
        return self.options.get("shards") or example_shards(*self._examples(args))

    def _gradient(self, required: Mapping[str, Statistic], shards: int) -> Callable[..., Any]:
        """f(*args) == ((value, gradient), statistics)."""
        for name in required.keys() & self.statistics.keys():
            if required[name] != self.statistics[name]:
                raise ValueError(
                    f"the optimizer needs {required[name].name} as {name!r}; name yours otherwise"
                )
        statistics = {**self.statistics, **required}
        if not statistics:
            plain = jax.value_and_grad(self.loss, has_aux=self.has_aux)
            return lambda *args: (plain(*args), {})
        options: Any = {
            **self.options,
            "batch_argnums": self.batch_argnums,
            "has_aux": self.has_aux,
            "shards": shards,
        }
        return value_and_grad(self.loss, statistics=statistics, **options)

    def _batch_size(self, *args: Any) -> Any:
        """How many examples there are, or how many of them are real."""
        size, is_real = self._size(*args), self.options.get("is_real")
        return (
            size
            if is_real is None
            else jnp.sum(flags_among(is_real, args, {}) == 1, dtype=jnp.int32)
        )

    def _divisor(self, *args: Any) -> Any:
        """What makes a sum a mean: 1 where no example is real, NaN where flags are none."""
        is_real = self.options.get("is_real")
        if is_real is None:
            return self._size(*args)
        return flags_and_count(jnp.float32, flags_among(is_real, args, {}))[1]

    def _size(self, *args: Any) -> int:
        arrays, axes = self._examples(args)
        if not axes:
            return flags_among(self.options["is_real"], args, {}).shape[0]
        sizes = {f"array {i}": kind_of(arrays[i]).shape[axis] for i, axis in axes.items()}
        count = example_count(sizes, self.options["rows_per_example"])
        if count == 0:
            raise ValueError("the batch arguments hold no examples; they must hold at least one")
        return count

    def _examples(self, args: Sequence[Any]) -> tuple[list[Any], dict[int, int]]:
        """All arrays among the arguments, and the example axes of the batch's, by number."""
        arrays = [leaf for leaf in jax.tree.leaves(args) if is_array(leaf)]
        if segments := self.options["segments"]:
            return arrays, dict(segments_among(segments, args, {}, self.batch_argnums).axes)
        how = self.options["in_axes"], self.options["rows_per_example"]
        return arrays, leaf_axes(args, {}, self.batch_argnums, *how)


def _check_floats(params: Any) -> None:
    """Raises TypeError for what has no gradient, as integers in an optimizer's state."""
    for path, leaf in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} is {jnp.result_type(leaf)}, and parameters "
                "are floats; a step is called as step(params, opt_state, *batch)"
            )
