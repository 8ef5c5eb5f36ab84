"""By example: weighted sums of gradients, inner products, and functions of whole gradients, from
each example's own, in a loop over the examples, or for sums in a kernel's.

For sums with weights and products it is the way where operands cannot take the weights: what is
rounded, and what `vmap` cannot lift.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import summable, widened
from hlo_surgery.passes.strategies.by_gradient.loop_examples import looped_gradients
from hlo_surgery.passes.strategies.fused.fused import FUSED, weighted_sum
from hlo_surgery.passes.strategies.strategy import Chosen
from hlo_surgery.passes.strategies.task import Known, Schedule
from hlo_surgery.passes.terms.slice_functions import jointly

Phi = Callable[[jax.Array], jax.Array]
Function = Callable[[list[jax.Array]], Any]


def weighted_by_example(
    chosen: Chosen,
    known: Known,
    weights: jax.Array,
    finite: jax.Array | None,
    phi: Phi | None = None,
) -> jax.Array:
    """The sum over b of w_b g_b, or of phi of it, in at least float32; of the `finite` alone."""
    if chosen.weighting is FUSED:
        return weighted_sum(chosen.task, known, weights, finite, phi)
    size = weights.shape[0]

    def scaled(gradient: jax.Array, weight: jax.Array) -> jax.Array:
        wide = widened(gradient)
        weighted = wide * weight.astype(wide.dtype)
        return weighted if phi is None else phi(weighted)

    function, schedule, beside = chosen.task.function, chosen.schedule, (weights,)
    loop = partial(looped_gradients, function, known, size, schedule)
    return loop(scaled, _nothing, beside, counted=finite)[0]


def along_by_example(chosen: Chosen, known: Known, direction: jax.Array) -> jax.Array:
    """Inner products of each example's own gradient with a direction, [B], at least float32; with
    m directions [m, *parameter], [B, m].
    """
    against = widened(direction).conj()

    def product(gradient: jax.Array) -> jax.Array:
        own = widened(gradient)
        return jnp.real(jnp.tensordot(against, own, own.ndim, precision="highest"))

    function, size = chosen.task.function, chosen.task.examples.size
    _, rows = looped_gradients(function, known, size, chosen.schedule, _nothing, product)
    return rows


def sum_over_examples(chosen: Sequence[Chosen], known: Known, function: Function) -> Any:
    """The sum of `function`'s arrays over the examples that are no padding; it is given one
    example's gradients, each in at least float32.
    """
    examples = chosen[0].task.examples

    def summand(gradients: Sequence[jax.Array]) -> Any:
        return jax.tree.map(summable, function([widened(g) for g in gradients]))

    together = jointly([one.task.function for one in chosen])
    schedule = _in_common([one.schedule for one in chosen])
    loop = partial(looped_gradients, together, known, examples.size, schedule)
    return loop(summand, _nothing, counted=examples.flags(known))[0]


def _in_common(schedules: Sequence[Schedule]) -> Schedule:
    """As many examples at a time as the gradient that takes the fewest; one that is written out
    goes along with those that are not.
    """
    written_out = all(each.written_out for each in schedules)
    chunks = [each.chunk for each in schedules if each.written_out == written_out]
    return Schedule(min(chunks), min(each.shards for each in schedules), written_out)


def _nothing(gradient: Any) -> tuple[()]:
    return ()
