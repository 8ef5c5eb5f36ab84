"""Results: the arrays of all statistics of a request, from what was measured of the gradients.

Statistic trees: what statistics return, as trees like the gradient's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.emit.splice import within
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.measures.moments import nan_where
from hlo_surgery.passes.rewriting.measurements import Measurements, Staged
from hlo_surgery.passes.terms.gradient_slices import has_offset
from hlo_surgery.passes.terms.steps import Lifted
from hlo_surgery.requests.groups import groups_tree
from hlo_surgery.requests.request import (
    Request,
    labels_of,
)
from hlo_surgery.statistics.derived import Derived, parts_of, results_of


def tree_of(statistic: Derived, gradient: Any) -> Any:
    """A tree like a statistic's result."""
    tree, leaf = gradient, ""
    if statistic.parts:
        leaf = statistic.parts(*[""] * len(parts_of(statistic)))
    if statistic.like == "own":
        tree = jax.tree.structure(statistic.returns)
    if statistic.like == "group" and statistic.per == "global":
        return leaf
    if statistic.like == "group" and statistic.per != "parameter":
        tree = jax.tree.structure(groups_tree(statistic.name, statistic.per))
    return jax.tree.unflatten(tree, [leaf] * tree.num_leaves)


def shardings_of(own: Sequence[Any], statistics: Mapping[str, Derived], numbers: Any) -> list[Any]:
    """Of all outputs: what is like the gradient lies as it does."""
    of_gradient = [own[number] for number in jax.tree.leaves(numbers)]
    found = list(own)
    for s in statistics.values():
        alike = s.like == "gradient" and not s.parts
        count = len(jax.tree.leaves(tree_of(s, jax.tree.structure(numbers))))
        found += of_gradient if alike else [None] * count
    return found


SHARED_BY_REAL = (
    "bounds each example's influence, but the real examples share a term by their number"
)
OFFSET_HELP = "leave terms without examples, such as decay, to the optimizer"


def results(request: Request, found: Measurements) -> list[Array]:
    """The arrays of all statistics, in order."""
    _refuse_shared_by_real(request, found)
    return _in_order(request, found, {})


def staged(request: Request) -> Staged:
    """The same where microbatches are added up: what needs sums with weights is made of each, if
    that of the batch is made of those of its parts.
    """
    reweighting = {n: s for n, s in request.statistics.items() if s.takes_sums}
    inside = {n: s for n, s in reweighting.items() if s.joins}
    counts = {n: len(labels_of(n, s, request)) for n, s in inside.items()}
    known = [join for n, s in inside.items() if (join := s.joins) for _ in range(counts[n])]

    def of_step(found: Measurements) -> list[Array]:
        arrays: list[Array] = []
        for n, s in inside.items():
            with within("statistic", [n]):
                arrays += results_of(s, found, request.groups[n])
        return arrays

    def of_all(found: Measurements, made: Sequence[Array]) -> list[Array]:
        left = iter(made)
        return _in_order(
            request, found, {n: [next(left) for _ in range(counts[n])] for n in inside}
        )

    return Staged(of_step, known, of_all, len(inside) < len(reweighting))


def _in_order(
    request: Request, found: Measurements, made: Mapping[str, Sequence[Array]]
) -> list[Array]:
    """The arrays of all statistics; `made`: those that are known already, by name."""
    each: list[Sequence[Array]] = []
    for name, statistic in request.statistics.items():
        with within("statistic", [name]):
            groups = request.groups[name]
            own = made.get(name) or results_of(statistic, found, groups)
        each.append(own)
    asked = request.statistics.values()
    arrays = [_apart(s, x, found) for s, own in zip(asked, each, strict=True) for x in own]
    if request.real is None:
        return arrays
    # It is no statistic where the number of the real examples is none.
    return [nan_where(jnp.isnan(found.count), x) for x in arrays]


def _apart(statistic: Derived, array: jax.Array, found: Measurements) -> jax.Array:
    """NaN in place of what examples that meet others make: their rows, or else all."""
    if found.examples.crossed is None:
        return array
    wrong = found.crossed()
    by_example = statistic.by_example
    wrong = jnp.expand_dims(wrong, range(1, array.ndim)) if by_example else jnp.any(wrong)
    return nan_where(wrong, array)


def _refuse_shared_by_real(request: Request, found: Measurements) -> None:
    """What all share is divided by the number of the real: each gradient would rest on others.

    What a loop has lifted does not tell, nor what no op is on the way to: these are asked of the
    module (`pipeline`).
    """
    private = request.private
    if not private or request.real is None or request.size == 1:
        return
    slices = [found.chosen[i].task.sliced for i in range(len(request.gradients))]
    stepping = (s for s in slices if s.steps)
    told = (s for s in stepping if not any(isinstance(axis, Lifted) for _, axis in s.inputs))
    if any(map(has_offset, told)):
        raise shared_by_real(private[0])


def shared_by_real(name: str) -> Refusal:
    """The refusal of a private statistic beside a term that all share."""
    return Refusal(Reason(f"{name} {SHARED_BY_REAL}", "is_real", "request", OFFSET_HELP))
