"""Measurements: what statistics are combined of, while the code that replaces a block's end is
traced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.emit.splice import within
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, widened
from hlo_surgery.passes.ir.mlir import Values
from hlo_surgery.passes.measures.kronecker import KroneckerFactors
from hlo_surgery.passes.measures.measures import MEAN, Measure, PerExampleGradients
from hlo_surgery.passes.measures.moments import Join, squared_magnitude, without_padding
from hlo_surgery.passes.strategies.einsums.kronecker import rotated_squares
from hlo_surgery.passes.strategies.lift import Function, along_by_example, sum_over_examples
from hlo_surgery.passes.strategies.reweight_examples import (
    is_exact_in_float32,
    reweighted,
    weighted_rows,
)
from hlo_surgery.passes.strategies.square_operands import is_squarable, weighted_squares
from hlo_surgery.passes.strategies.strategy import Chosen, Examples, Measured, is_precise
from hlo_surgery.passes.terms.steps import Known


@dataclass(frozen=True)
class Measurements:
    """What is found of the first `number` targets, which are gradients; a last one beyond
    them may be the loss.

    `measured`: by target; `values`: the targets themselves. `chosen` holds those that no loop
    stacks; only of these there are sums with weights.
    """

    examples: Examples
    number: int
    measured: Sequence[Measured]
    chosen: Mapping[int, Chosen]
    known: Known
    values: Values

    @property
    def size(self) -> int:
        """B."""
        return self.examples.size

    @property
    def count(self) -> Any:
        """How many of them are real."""
        return self.examples.count(self.known)

    @property
    def _real(self) -> Array | None:
        return self.examples.flags(self.known)

    @property
    def _gradients(self) -> range:
        return range(self.number)

    def of(self, measure: Measure) -> Arrays:
        """A measure of each gradient."""
        found, real = [self.measured[i][measure] for i in self._gradients], self._real
        if real is None:
            return found
        return [jnp.where(jnp.any(real), x, jnp.zeros_like(x)) for x in found]

    def mean(self) -> Arrays:
        """The mean of the examples' gradients; the module's own may count padding."""
        return self.own_mean() if self._real is None else self.of(MEAN)

    def own_mean(self) -> Arrays:
        """The module's own gradients, of a sum over the number of examples."""
        gradients = [self.values[i] for i in self._gradients]
        return [self.examples.mean_gradient(gradient, self.known) for gradient in gradients]

    def weighted(
        self,
        weights: Arrays,
        finite: Array | None = None,
        *,
        squares: bool = False,
    ) -> Arrays:
        """The sum over b of w_b g_b, or of |w_b g_b|**2, in which padding counts nothing."""
        real = self._real
        if real is not None:
            finite = real if finite is None else finite & real
        own = _apart([without_padding(w, real) for w in weights])
        return self._each(partial(self._weighted, finite=finite, squares=squares), own)

    def weighted_squares(self, weights: Arrays, finite: Array | None = None) -> Arrays:
        """The sum over b of |w_b g_b|**2."""
        return self.weighted(weights, finite, squares=True)

    def summed(self, function: Function) -> Any:
        """The sum over b of a function of all gradients of one example."""
        chosen = [self.chosen[i] for i in self._gradients]
        names = [one.task.name for one in chosen]
        with within("output", names), within("strategy", ["loop"]):
            return sum_over_examples(chosen, self.known, function)

    def along(self, directions: Arrays) -> Arrays:
        """Inner products of each example's gradient with a direction, or with each of several."""
        rows = self._each(self._along, directions)
        return [without_padding(row, self._real) for row in rows]

    def rotated_squares(self, bases: Sequence[KroneckerFactors]) -> Arrays:
        """The mean over b of (P' g_b Q)**2."""
        return self._each(lambda i, b: rotated_squares(self.chosen[i], self.known, b), bases)

    def _each(self, of: Callable[[int, Any], Array], given: Sequence[Any]) -> Arrays:
        """Of each gradient, by its number and what is given for it, named so."""
        found: Arrays = []
        for i, own in zip(self._gradients, given, strict=True):
            with within("output", [self.chosen[i].task.name]), within("strategy", ["reweight"]):
                found.append(of(i, own))
        return found

    def crossed(self) -> Array:
        """Which examples meet others as the program runs, [B]."""
        told = self.examples.crossed
        return jnp.zeros(self.size, bool) if told is None else self.known[told]

    def losses(self) -> Array:
        """Each example's own loss."""
        return self.measured[-1][PerExampleGradients()]

    def _along(self, i: int, given: Array) -> Array:
        """[B] for a direction like the gradient, [B, m] for m of them.

        One direction is taken as the derivative of a weighted sum by w, where that is contracted.
        An example's gradient, once made, costs a direction one product for each of its elements;
        its operands cost one for each position as well.
        """
        if given.ndim > len(mlir.shape(self.values[i])) or self._by_example(i):
            return along_by_example(self.chosen[i], self.known, given)
        ones = jnp.ones(self.size, widened(given).real.dtype)
        sums, transpose = jax.vjp(partial(self._weighted, i, finite=self._real), ones)
        (products,) = transpose(given.conj().astype(sums.dtype))
        return products

    def _by_example(self, i: int) -> bool:
        """Whether the weighted sum takes each example's own gradient."""
        task = self.chosen[i].task
        exact = self._is_wide(i) or is_precise(task.sliced)
        return self.size == 1 or not exact

    def _is_wide(self, i: int) -> bool:
        """Whether operands with weights are had in float32, where the module's own are narrower."""
        task = self.chosen[i].task
        return task.how.wide and is_exact_in_float32(task.sliced)

    def _weighted(
        self, i: int, weights: Array, *, finite: Array | None, squares: bool = False
    ) -> Array:
        chosen, task, wide = self.chosen[i], self.chosen[i].task, self._is_wide(i)
        lifted = self.measured[i].get(PerExampleGradients())
        if lifted is not None and not squares and mlir.is_at_least_float32(task.gradient):
            return weighted_rows(lifted, weights, finite)
        own = squares and (wide or not is_squarable(task.sliced))
        if own or self._by_example(i):
            phi = squared_magnitude if squares else None
            return chosen.weighting(chosen, self.known, weights, finite, phi)
        if squares:
            return weighted_squares(task, self.known, weights, finite)
        scale = 1 if self.examples.is_mean else 1 / self.count
        return reweighted(task.sliced, self.known, weights, self.count, finite, wide) * scale


def _apart(weights: Arrays) -> Arrays:
    """The same weights, as values of which each gradient has its own.

    XLA for GPU would multiply all operands that share their weights in one kernel, before the first
    of them is contracted, and so hold weighted copies of all.
    """
    own: Arrays = []
    for weight in weights:
        kept = [*own[-1:], weight]
        own.append(lax.optimization_barrier(kept)[-1])
    return own


@dataclass(frozen=True)
class Staged:
    """What is made of measures in each step, and of all behind the loop.

    `inside`: what rests on sums of gradients with weights, joined over the steps by `joins`;
    `behind`: all statistics, from the whole's measurements and what was made inside; `again`:
    whether it asks for sums with weights that all examples decide on.
    """

    inside: Callable[[Measurements], Arrays]
    joins: Sequence[Join]
    behind: Callable[[Measurements, Arrays], Arrays]
    again: bool
