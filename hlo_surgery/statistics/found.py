"""Found: what statistics are combined of, whoever computed it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from hlo_surgery.passes.measures.kronecker import KroneckerFactors
from hlo_surgery.passes.measures.measures import Measure


class Found(Protocol):
    """What has been computed of the examples' gradients, one entry for each gradient output."""

    @property
    def size(self) -> int:
        """B."""
        ...

    @property
    def count(self) -> Any:
        """How many of the examples are real, a number or a traced one; 1 where none is."""
        ...

    def of(self, measure: Measure) -> list[jax.Array]:
        """A measure of each output."""
        ...

    def mean(self) -> list[jax.Array]:
        """The mean of the examples' gradients, for a statistic that is `about_mean`."""
        ...

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b, with weights [B] for each output; examples that are not
        `finite` are left out.
        """
        ...

    def weighted_squares(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of |w_b g_b|**2, with weights as in `weighted`."""
        ...

    def summed(self, function: Callable[[list[jax.Array]], Any]) -> Any:
        """The sum over b of a function of all gradients of one example, a list in the order of the
        outputs; the function's arrays, each summed.
        """
        ...

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction like it, [B]; with m of
        them, [m, *], [B, m].
        """
        ...

    def rotated_squares(self, bases: Sequence[KroneckerFactors]) -> list[jax.Array]:
        """The mean over b of (P' g_b Q)**2, with P and Q of each output."""
        ...

    def losses(self) -> jax.Array:
        """Each example's own loss, [B]."""
        ...
