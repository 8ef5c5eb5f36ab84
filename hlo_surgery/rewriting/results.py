"""Results: statistics from the measures of all gradients, while a replacement is traced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.measures import Measure, PerExampleGradients
from hlo_surgery.passes.measures.real_examples import without_padding
from hlo_surgery.passes.strategies.reweight_examples import has_offset, reweighted
from hlo_surgery.passes.strategies.strategy import Chosen, Measured
from hlo_surgery.passes.strategies.task import Examples, is_precise
from hlo_surgery.passes.strategies.weigh_by_example import along_by_example, weighted_by_example
from hlo_surgery.passes.terms.gradient_slices import GradientSlice, Lifted
from hlo_surgery.requests.request import Request
from hlo_surgery.statistics.derived import Derived


@dataclass(frozen=True)
class Measurements:
    """What is found of the gradients, as `statistics.found.Found`. A last target beyond them may
    be the loss.

    `chosen` holds those targets that no loop stacks; only of these there are sums with weights.
    """

    request: Request
    measured: Sequence[Measured]
    chosen: Mapping[int, Chosen]
    known: Mapping[Value, jax.Array]
    targets: Sequence[Value]

    @property
    def size(self) -> int:
        """B."""
        return self.request.size

    @property
    def count(self) -> Any:
        """How many of them are real."""
        return self._examples.count(self.known)

    @property
    def _examples(self) -> Examples:
        return self.request.examples

    @property
    def _real(self) -> jax.Array | None:
        return self._examples.flags(self.known)

    @property
    def _gradients(self) -> range:
        return range(len(self.request.gradients))

    def of(self, measure: Measure) -> list[jax.Array]:
        """A measure of each gradient."""
        found = [self.measured[i][measure] for i in self._gradients]
        real = self._real
        return (
            found
            if real is None
            else [jnp.where(jnp.any(real), x, jnp.zeros_like(x)) for x in found]
        )

    def mean(self) -> list[jax.Array]:
        """The mean of the examples' gradients."""
        gradients = [self.targets[i] for i in self._gradients]
        return [self._examples.mean_gradient(gradient, self.known) for gradient in gradients]

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        padding = self._examples.padding(self.known)
        if padding is not None:
            finite = padding.real if finite is None else finite & padding.real
            weights = [without_padding(w, padding) for w in weights]
        return [
            self._weighted(i, w, finite=finite)
            for i, w in zip(self._gradients, weights, strict=True)
        ]

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction."""
        padding = self._examples.padding(self.known)
        pairs = zip(self._gradients, directions, strict=True)
        return [without_padding(self._along(i, direction), padding) for i, direction in pairs]

    def losses(self) -> jax.Array:
        """Each example's own loss."""
        return self.measured[-1][PerExampleGradients()]

    def _along(self, i: int, direction: jax.Array) -> jax.Array:
        """As the derivative of a weighted sum's by w, where that is contracted."""
        if self._by_example(i):
            return along_by_example(self.chosen[i], self.known, direction)
        ones = jnp.ones(self.size, widened(direction).real.dtype)
        sums, transpose = jax.vjp(partial(self._weighted, i, finite=self._real), ones)
        (products,) = transpose(direction.conj().astype(sums.dtype))
        return products

    def _by_example(self, i: int) -> bool:
        """Whether the weighted sum needs each example's own gradient."""
        task = self.chosen[i].task
        return not is_precise(task.sliced) or not task.function.liftable

    def _weighted(self, i: int, weights: jax.Array, *, finite: jax.Array | None) -> jax.Array:
        sliced = self.chosen[i].task.sliced
        _refuse_shared_by_real(self.request, sliced)
        if self._by_example(i):
            return weighted_by_example(self.chosen[i], self.known, weights, finite)
        scale = 1 if self._examples.is_mean else 1 / self.count
        return reweighted(sliced, self.known, weights, self.count, finite) * scale


def _refuse_shared_by_real(request: Request, sliced: GradientSlice) -> None:
    """What all share is divided by the number of the real: each gradient would rest on others."""
    private = [n for n, s in request.statistics.items() if isinstance(s, Derived) and s.private]
    lifted = any(isinstance(axis, Lifted) for _, axis in sliced.inputs)
    if private and request.real is not None and request.size > 1 and (lifted or has_offset(sliced)):
        why = (
            f"{private[0]} bounds each example's influence, but the real examples share a term "
            "by their number"
        )
        raise Refusal(
            Reason(
                why,
                "is_real",
                "request",
                "leave terms without examples, such as decay, to the optimizer",
            )
        )
