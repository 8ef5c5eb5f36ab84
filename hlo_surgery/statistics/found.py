"""Found: what statistics are combined of, whoever computed it."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax

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
        """The mean of the examples' gradients."""
        ...

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b, with weights [B] for each output; examples that are not
        `finite` are left out.
        """
        ...

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction like it, [B]; with m of
        them, [m, *], [B, m].
        """
        ...

    def crossed(self) -> jax.Array:
        """Whether each example was found to meet another as the program ran, [B]."""
        ...

    def losses(self) -> jax.Array:
        """Each example's own loss, [B]."""
        ...
