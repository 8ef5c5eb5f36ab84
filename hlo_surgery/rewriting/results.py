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
from hlo_surgery.passes.strategies.reweight_examples import has_offset, reweighted
from hlo_surgery.passes.terms.gradient_slices import Lifted
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.looped import along_by_example, weighted_by_example
from hlo_surgery.rewriting.real_examples import (
    count_of,
    flags_of,
    mean_of_examples,
    without_padding,
)
from hlo_surgery.rewriting.wanted import Measured, Wanted, is_precise
from hlo_surgery.statistics.derived import Derived
from hlo_surgery.statistics.measures import Measure, PerExampleGradients


@dataclass(frozen=True)
class Measurements:
    """What is found of the gradients, as `statistics.measures.Found`. A last target beyond them may
    be the loss.

    `wanted` holds those targets that no loop stacks; only of these there are sums with weights.
    """

    request: Request
    measured: Sequence[Measured]
    wanted: Mapping[int, Wanted]
    known: Mapping[Value, jax.Array]
    targets: Sequence[Value]

    @property
    def size(self) -> int:
        """B."""
        return self.request.size

    @property
    def count(self) -> Any:
        """How many of them are real."""
        return count_of(self.known, self.request)

    @property
    def _real(self) -> jax.Array | None:
        return flags_of(self.known, self.request)

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
        return [
            mean_of_examples(self.targets[i], self.known, self.request) for i in self._gradients
        ]

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        real = self._real
        if real is not None:
            finite = real if finite is None else finite & real
            weights = [without_padding(w, real) for w in weights]
        return [
            self._weighted(i, w, finite=finite)
            for i, w in zip(self._gradients, weights, strict=True)
        ]

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction."""
        pairs = zip(self._gradients, directions, strict=True)
        return [without_padding(self._along(i, direction), self._real) for i, direction in pairs]

    def losses(self) -> jax.Array:
        """Each example's own loss."""
        return self.measured[-1][PerExampleGradients()]

    def _along(self, i: int, direction: jax.Array) -> jax.Array:
        """As the derivative of a weighted sum's by w, where that is contracted."""
        if self._by_example(i):
            return along_by_example(self.wanted[i], self.known, direction, self.size)
        ones = jnp.ones(self.size, widened(direction).real.dtype)
        sums, transpose = jax.vjp(partial(self._weighted, i, finite=self._real), ones)
        (products,) = transpose(direction.conj().astype(sums.dtype))
        return products

    def _by_example(self, i: int) -> bool:
        """Whether the weighted sum needs each example's own gradient."""
        wanted = self.wanted[i]
        return not is_precise(wanted.sliced) or not wanted.function.liftable

    def _weighted(self, i: int, weights: jax.Array, *, finite: jax.Array | None) -> jax.Array:
        wanted = self.wanted[i]
        _refuse_shared_by_real(self.request, wanted)
        if self._by_example(i):
            return weighted_by_example(wanted, self.known, weights, finite)
        single = self.size == 1
        scale = 1 if self.request.loss_reduction == "mean" or single else 1 / self.count
        return reweighted(wanted.sliced, self.known, weights, self.count, finite) * scale


def _refuse_shared_by_real(request: Request, wanted: Wanted) -> None:
    """What all share is divided by the number of the real: each gradient would rest on others."""
    private = [n for n, s in request.statistics.items() if isinstance(s, Derived) and s.private]
    lifted = any(isinstance(axis, Lifted) for _, axis in wanted.sliced.inputs)
    if (
        private
        and request.real is not None
        and request.size > 1
        and (lifted or has_offset(wanted.sliced))
    ):
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
