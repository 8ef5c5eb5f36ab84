"""Compute: the statistics of one gradient by the strategies taken, as a JAX function of values of the module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from hlo_surgery import mlir
from hlo_surgery.mlir import Value
from hlo_surgery.passes.element_types import dtype_of
from hlo_surgery.passes.gradient_slices import GradientSlice
from hlo_surgery.passes.lift_examples import lifted_gradients
from hlo_surgery.passes.loop_examples import looped_gradients
from hlo_surgery.passes.slice_functions import SliceFunction
from hlo_surgery.passes.square_operands import squared_mean
from hlo_surgery.request import Request
from hlo_surgery.statistics import MeanOf, Statistic


@dataclass(frozen=True)
class Wanted:
    """One gradient: its slice, the function of one example, and the strategy taken for each statistic."""

    sliced: GradientSlice
    function: SliceFunction
    strategies: Mapping[str, str]


Known = Mapping[Value, jax.Array]
Statistics = Mapping[str, Statistic]
Computed = tuple[jax.Array | None, dict[str, jax.Array]]


def reuses_gradient(wanted: Wanted) -> bool:
    """Whether the gradient is taken from the tensors that hold each example's own."""
    instantiated = any(strategy in ("lift", "loop") for strategy in wanted.strategies.values())
    return bool(wanted.sliced.sites) and instantiated and mlir.is_at_least_float32(wanted.sliced.value)


def statistic_dtype(gradient: Value) -> jnp.dtype:
    """Squares and sums of low-precision gradients accumulate in float32."""
    return jnp.promote_types(dtype_of(gradient), jnp.float32)


def compute_statistics(wanted: Wanted, known: Known, request: Request) -> Computed:
    """The gradient where it is reused (else None), and every statistic."""
    found: dict[str, jax.Array] = {}
    gradient: jax.Array | None = None
    for strategy, compute in (("square", _squared), ("lift", _lifted), ("loop", _looped)):
        names = [name for name, taken in wanted.strategies.items() if taken == strategy]
        if names:
            total, statistics = compute(wanted, known, {n: request.statistics[n] for n in names}, request)
            found |= statistics
            gradient = total if gradient is None else gradient
    return gradient if reuses_gradient(wanted) else None, found


def _squared(wanted: Wanted, known: Known, statistics: Statistics, request: Request) -> Computed:
    given = {key: known[key[0]] for key in wanted.function.inputs}
    dtype, mean_loss = statistic_dtype(wanted.sliced.value), request.loss_reduction == "mean"
    phis = {name: precise_phi(s, dtype) for name, s in statistics.items() if isinstance(s, MeanOf)}
    return None, {n: squared_mean(wanted.sliced, given, phi, dtype, request.size, mean_loss) for n, phi in phis.items()}


def _lifted(wanted: Wanted, known: Known, statistics: Statistics, request: Request) -> Computed:
    gradients = lifted_gradients(wanted.function, known, request.size)
    dtype = statistic_dtype(wanted.sliced.value)
    found = {
        name: jnp.mean(precise_phi(s, dtype)(gradients), 0) if isinstance(s, MeanOf) else gradients
        for name, s in statistics.items()
    }
    return _total(jnp.mean(gradients, 0), request), found


def _looped(wanted: Wanted, known: Known, statistics: Statistics, request: Request) -> Computed:
    dtype = statistic_dtype(wanted.sliced.value)
    phis = {name: precise_phi(s, dtype) for name, s in statistics.items() if isinstance(s, MeanOf)}
    stacked = len(phis) < len(statistics)
    sums, gradients = looped_gradients(wanted.function, known, request.size, [_itself, *phis.values()], stacked)
    found = {name: total / request.size for name, total in zip(phis, sums[1:], strict=True)}
    found |= {name: gradients for name in statistics if name not in phis and gradients is not None}
    return _total(sums[0] / request.size, request), found


def precise_phi(statistic: MeanOf, dtype: jnp.dtype) -> Callable[[jax.Array], jax.Array]:
    """Phi of gradients, computed in `dtype` and returned in it, or in the real dtype beside it."""

    def phi(gradients: jax.Array) -> jax.Array:
        found = statistic.phi(gradients.astype(dtype))
        return found.astype(dtype if jnp.iscomplexobj(found) else jnp.finfo(dtype).dtype)

    return phi


def _itself(gradient: jax.Array) -> jax.Array:
    return gradient


def _total(mean: jax.Array, request: Request) -> jax.Array:
    """The minibatch gradient from the mean of the examples' gradients."""
    return mean if request.loss_reduction == "mean" else mean * request.size
