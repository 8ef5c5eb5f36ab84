"""By example: weighted sums of gradients, inner products, and functions of whole gradients, from
each example's own, in a loop over the examples, or for sums in a kernel's.

For sums with weights and products it is the way where operands cannot take the weights: what is
rounded, and what `vmap` cannot lift.
"""

from collections.abc import Callable, Sequence
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

    def scaled(gradient: jax.Array, weight: jax.Array, keep: jax.Array) -> jax.Array:
        wide = widened(gradient)
        weighted = wide * weight.astype(wide.dtype)
        taken = weighted if phi is None else phi(weighted)
        return jnp.where(keep, taken, jnp.zeros_like(taken))

    keep = jnp.ones(size, bool) if finite is None else finite
    function, schedule = chosen.task.function, chosen.schedule
    total, _ = looped_gradients(function, known, size, schedule, scaled, _nothing, (weights, keep))
    return total


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
    padding = examples.padding(known)

    def summand(gradients: Sequence[jax.Array], *real: jax.Array) -> Any:
        taken = jax.tree.map(summable, function([widened(g) for g in gradients]))
        return (
            jax.tree.map(lambda x: jnp.where(real[0], x, jnp.zeros_like(x)), taken)
            if real
            else taken
        )

    together = jointly([one.task.function for one in chosen])
    beside = () if padding is None else (padding.real,)
    schedule = _in_common([one.schedule for one in chosen])
    total, _ = looped_gradients(together, known, examples.size, schedule, summand, _nothing, beside)
    return total


def _in_common(schedules: Sequence[Schedule]) -> Schedule:
    """As many examples at a time as the gradient that takes the fewest; one that is written out
    goes along with those that are not.
    """
    written_out = all(each.written_out for each in schedules)
    chunks = [each.chunk for each in schedules if each.written_out == written_out]
    shards, together = min(each.shards for each in schedules), schedules[0].joint_sums
    return Schedule(min(chunks), shards, written_out, together)


def _nothing(gradient: Any) -> tuple[()]:
    return ()
