"""Replacement: the JAX function that computes every statistic asked for from values of the module, spliced in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery import mlir
from hlo_surgery.mlir import Module, Value
from hlo_surgery.passes.element_types import dtype_of
from hlo_surgery.passes.gradient_slices import GradientSlice, Input
from hlo_surgery.passes.lift_examples import lifted_gradients
from hlo_surgery.passes.loop_examples import looped_gradients
from hlo_surgery.passes.slice_functions import SliceFunction
from hlo_surgery.passes.splice import splice
from hlo_surgery.passes.square_operands import squared_mean
from hlo_surgery.request import Request
from hlo_surgery.statistics import MeanOf, Statistic


@dataclass(frozen=True)
class Wanted:
    """One gradient output with its slice, the function of one example, and the strategies taken."""

    number: int
    sliced: GradientSlice
    function: SliceFunction
    strategies: Mapping[str, str]


def append_statistics(module: Module, wanted: Sequence[Wanted], request: Request, names: Sequence[str]) -> None:
    """Return the statistics of every gradient after the module's own outputs.

    A gradient whose examples are instantiated anyway is taken from the same tensor. `names`: of the outputs.
    """
    main = mlir.main_function(module)
    outputs = mlir.operands(mlir.return_operation(mlir.body(main)))
    values = list(dict.fromkeys(v for w in wanted for v, _ in w.function.inputs))

    def replacement(*operands: jax.Array) -> list[jax.Array]:
        known = dict(zip(values, operands, strict=True))
        found = [_results(w, {key: known[key[0]] for key in w.function.inputs}, request) for w in wanted]
        statistics = [statistics[name] for name in request.statistics for _, statistics in found]
        return [gradient for gradient, _ in found if gradient is not None] + statistics

    made = iter(splice(values, replacement, mlir.return_operation(mlir.body(main))))
    for w in wanted:
        if _reuses_gradient(w):
            outputs[w.number] = next(made)
    labels = [f"{name}/{names[w.number]}" for name in request.statistics for w in wanted]
    mlir.set_results(main, [*outputs, *made], [{"jax.result_info": label} for label in labels])


def _reuses_gradient(wanted: Wanted) -> bool:
    instantiated = any(strategy in ("lift", "loop") for strategy in wanted.strategies.values())
    return bool(wanted.sliced.sites) and instantiated and mlir.is_at_least_float32(wanted.sliced.value)


def _results(
    wanted: Wanted, given: Mapping[Input, jax.Array], request: Request
) -> tuple[jax.Array | None, dict[str, jax.Array]]:
    """The gradient where it is taken from per-example tensors (else None), and every statistic."""
    found: dict[str, jax.Array] = {}
    gradient: jax.Array | None = None
    for strategy, compute in (("square", _squared), ("lift", _lifted), ("loop", _looped)):
        names = [name for name, taken in wanted.strategies.items() if taken == strategy]
        if names:
            total, statistics = compute(wanted, given, {n: request.statistics[n] for n in names}, request)
            found |= statistics
            gradient = total if gradient is None else gradient
    return gradient if _reuses_gradient(wanted) else None, found


Computed = tuple[jax.Array | None, dict[str, jax.Array]]


def _squared(
    wanted: Wanted, given: Mapping[Input, jax.Array], statistics: Mapping[str, Statistic], request: Request
) -> Computed:
    dtype = _accumulator(wanted.sliced.value)
    mean_loss = request.loss_reduction == "mean"
    phis = {name: s.phi for name, s in statistics.items() if isinstance(s, MeanOf)}
    return None, {n: squared_mean(wanted.sliced, given, phi, dtype, request.size, mean_loss) for n, phi in phis.items()}


def _lifted(
    wanted: Wanted, given: Mapping[Input, jax.Array], statistics: Mapping[str, Statistic], request: Request
) -> Computed:
    operands = [given[key] for key in wanted.function.inputs]
    gradients = lifted_gradients(wanted.function, operands, request.size)
    precise = gradients.astype(_accumulator(wanted.sliced.value))
    found = {
        name: jnp.mean(s.phi(precise), 0) if isinstance(s, MeanOf) else gradients for name, s in statistics.items()
    }
    return _total(jnp.mean(gradients, 0), request), found


def _looped(
    wanted: Wanted, given: Mapping[Input, jax.Array], statistics: Mapping[str, Statistic], request: Request
) -> Computed:
    dtype = _accumulator(wanted.sliced.value)
    phis = {name: s.phi for name, s in statistics.items() if isinstance(s, MeanOf)}
    summands: list[Callable[[Any], jax.Array]] = [lambda g, phi=phi: phi(g.astype(dtype)) for phi in phis.values()]
    operands = [given[key] for key in wanted.function.inputs]
    stacked = len(phis) < len(statistics)
    sums, gradients = looped_gradients(
        wanted.function, operands, request.size, [lambda g: g, *summands], stacked=stacked
    )
    found = {name: total / request.size for name, total in zip(phis, sums[1:], strict=True)}
    found |= {name: gradients for name in statistics if name not in phis and gradients is not None}
    return _total(sums[0] / request.size, request), found


def _total(mean: jax.Array, request: Request) -> jax.Array:
    """The minibatch gradient from the mean of the examples' gradients."""
    return mean if request.loss_reduction == "mean" else mean * request.size


def _accumulator(output: Value) -> jnp.dtype:
    """Squares and sums of low-precision gradients accumulate in float32."""
    return jnp.promote_types(dtype_of(output), jnp.float32)
