"""Results: statistics from the measures of all gradients, while the replacement of a module is traced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from hlo_surgery.looped import along_by_example, weighted_by_example
from hlo_surgery.measures import Measure, PerExampleGradients
from hlo_surgery.mlir import Value
from hlo_surgery.passes.element_types import widened
from hlo_surgery.passes.reweight_examples import reweighted
from hlo_surgery.request import Request
from hlo_surgery.wanted import Measured, Wanted, is_precise


@dataclass(frozen=True)
class Measurements:
    """What is found of the gradients, as `hlo_surgery.measures.Found`. A last target beyond them may be the loss.

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
    def _gradients(self) -> range:
        return range(len(self.request.gradients))

    def of(self, measure: Measure) -> list[jax.Array]:
        """A measure of each gradient."""
        return [self.measured[i][measure] for i in self._gradients]

    def mean(self) -> list[jax.Array]:
        """The mean of the examples' gradients."""
        scale = 1 if self.request.loss_reduction == "mean" else self.size
        return [widened(self.known[self.targets[i]]) / scale for i in self._gradients]

    def weighted(self, weights: Sequence[jax.Array], finite: jax.Array | None = None) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        return [self._weighted(i, w, finite=finite) for i, w in zip(self._gradients, weights, strict=True)]

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction."""
        return [self._along(i, direction) for i, direction in zip(self._gradients, directions, strict=True)]

    def losses(self) -> jax.Array:
        """Each example's own loss."""
        return self.measured[-1][PerExampleGradients()]

    def _along(self, i: int, direction: jax.Array) -> jax.Array:
        """As the derivative of a weighted sum's by w, where that is contracted."""
        if self._by_example(i):
            return along_by_example(self.wanted[i], self.known, direction, self.size)
        ones = jnp.ones(self.size, widened(direction).real.dtype)
        sums, transpose = jax.vjp(partial(self._weighted, i, finite=None), ones)
        (products,) = transpose(direction.conj().astype(sums.dtype))
        return products

    def _by_example(self, i: int) -> bool:
        """Whether the weighted sum needs each example's own gradient."""
        wanted = self.wanted[i]
        return not is_precise(wanted.sliced) or not wanted.function.liftable

    def _weighted(self, i: int, weights: jax.Array, *, finite: jax.Array | None) -> jax.Array:
        wanted = self.wanted[i]
        if self._by_example(i):
            return weighted_by_example(wanted, self.known, weights, finite)
        single = self.size == 1
        scale = 1 if self.request.loss_reduction == "mean" or single else 1 / self.size
        return reweighted(wanted.sliced, self.known, weights, finite) * scale
