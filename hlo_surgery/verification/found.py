"""All examples' gradients, for statistics: every measure by its definition, in double precision."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.measures.kronecker import KroneckerFactors, rotated_square
from hlo_surgery.passes.measures.measures import Measure, OfPositions, Variance
from hlo_surgery.passes.measures.moments import squared_magnitude
from hlo_surgery.verification.tolerances import Array

Direction = Callable[[Array], Array]
# The sign in which gradients move, and the signs of their measures by turns, so that differences
# move both ways: the variance of examples that are all alike is zero in most other patterns.
BY_TURNS = ((1, 1, 1), (-1, -1, -1), (1, 1, -1), (1, -1, 1))
# Random patterns of signs beside these: that each of them leaves a number in place is improbable.
PATTERNS = 6
TINY = np.finfo(np.float64).tiny


def exact(array: Array) -> Array:
    """The array as it is, for a measure that is known exactly."""
    return array


@dataclass(frozen=True)
class Stacked:
    """The gradients [B, *parameter] of each output, and the examples' losses [B], as
    `passes.rewriting.measurements.Measurements`.

    `rounded` moves each measure as rounding may. `contracted`: outputs whose variance is summed
    from the factors of gradients, in terms as large as their squares.
    """

    gradients: Sequence[Array]
    own_losses: Array
    rounded: Any = exact
    contracted: frozenset[int] = frozenset()
    measured: dict[Measure, list[jax.Array]] = field(default_factory=dict[Measure, list[jax.Array]])

    @property
    def size(self) -> int:
        """B."""
        return len(self.gradients[0])

    @property
    def count(self) -> Any:
        """How many of them are real: all that are held here, of which one alone has no variance."""
        return jnp.asarray(self.size, float)

    def of(self, measure: Measure) -> list[jax.Array]:
        """A measure of each output."""
        if isinstance(measure, OfPositions):
            raise TypeError(
                f"{measure} is of the examples' positions, which their gradients do not tell apart"
            )
        if measure not in self.measured:
            self.measured[measure] = [self._measure(measure, i) for i in range(len(self.gradients))]
        return self.measured[measure]

    def _measure(self, measure: Any, i: int) -> jax.Array:
        g = jnp.asarray(self.gradients[i])
        found = self._round(measure.of(g))
        if not isinstance(measure, Variance) or i not in self.contracted:
            return found
        square = jnp.mean(squared_magnitude(g), 0)
        return jnp.maximum(found + self._round(square) - square, 0)

    def mean(self) -> list[jax.Array]:
        """The mean of the examples' gradients."""
        return [self._round(np.mean(g, 0)) for g in self.gradients]

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        kept = np.ones(self.size, bool) if finite is None else np.asarray(finite)
        pairs = zip(weights, self.gradients, strict=True)
        return [
            self._round(np.einsum("b,b...->...", np.asarray(w)[kept], g[kept])) for w, g in pairs
        ]

    def weighted_squares(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of |w_b g_b|**2."""
        squares = [np.asarray(squared_magnitude(jnp.asarray(g))) for g in self.gradients]
        own = replace(self, gradients=squares)
        return own.weighted([jnp.square(w) for w in weights], finite)

    def summed(self, function: Callable[[list[jax.Array]], Any]) -> Any:
        """The sum over b of a function of all gradients of one example."""
        rows = jax.vmap(function)([jnp.asarray(g) for g in self.gradients])
        return jax.tree.map(lambda x: self._round(np.sum(np.asarray(x), 0)), rows)

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction like it, [B]; with m of
        them, [B, m].
        """
        pairs = zip(directions, self.gradients, strict=True)
        return [self._round(_along(g, np.asarray(given))) for given, g in pairs]

    def rotated_squares(self, bases: Sequence[KroneckerFactors]) -> list[jax.Array]:
        """The mean over b of |P' g_b Q|**2."""
        pairs = zip(bases, self.gradients, strict=True)
        each = ([rotated_square(jnp.asarray(one), basis) for one in g] for basis, g in pairs)
        return [self._round(jnp.mean(jnp.stack(squares), 0)) for squares in each]

    def losses(self) -> jax.Array:
        """Each example's own loss, [B]."""
        return jnp.asarray(self.own_losses)

    def _round(self, array: Any) -> jax.Array:
        return jnp.asarray(self.rounded(np.asarray(array)))


def _along(g: Array, given: Array) -> Array:
    """Of gradients [B, *] with a direction [*], or with each of several [m, *]."""
    flat = g.reshape(len(g), -1)
    products = np.real(flat @ given.reshape(-1, flat.shape[1]).conj().T)
    return products if given.ndim == g.ndim else products[:, 0]


def moved(
    found: Stacked, roundings: Sequence[Array], loss_roundings: Array, relative: float
) -> Iterator[Stacked]:
    """The same with every entry of a gradient moved by its rounding, in fixed patterns and at
    random.

    `roundings`: of each output, like `gradients`. Each float measure moves by `relative` of itself.
    """
    generator = np.random.default_rng(2)

    def at_random(array: Array) -> Array:
        return generator.choice(ways_of(array), array.shape)

    def to(direction: Direction, measures: Direction) -> Stacked:
        def rounded(array: Array) -> Array:
            is_rounded = array.dtype.kind in "fc"
            return array * (1 + relative * measures(np.abs(array))) if is_rounded else array

        pairs = zip(found.gradients, roundings, strict=True)
        gradients = [g + direction(g) * r for g, r in pairs]
        losses = found.own_losses + direction(found.own_losses) * loss_roundings
        return Stacked(gradients, losses, rounded, found.contracted)

    for sign, *turns in BY_TURNS:
        yield to(_by_turns([sign]), _by_turns([turn for turn in turns for _ in found.gradients]))
    yield _towards_the_mean(found, roundings)
    for _ in range(PATTERNS):
        yield to(at_random, at_random)


def ways_of(array: Array) -> tuple[complex, ...]:
    """The ways in which its numbers can be moved."""
    return (1.0, -1.0, 1j, -1j) if array.dtype.kind == "c" else (1.0, -1.0)


def _by_turns(signs: Sequence[int]) -> Direction:
    following = itertools.cycle(signs)
    return lambda array: np.full(array.shape, float(next(following)))


def _towards_the_mean(found: Stacked, roundings: Sequence[Array]) -> Stacked:
    """What is within its rounding of the mean becomes the mean: what divides by a spread is then
    without bound.
    """

    def nearer(g: Array, rounding: Array) -> Array:
        way = np.mean(g, 0) - g
        return g + way * np.minimum(1, rounding / np.maximum(np.abs(way), TINY))

    gradients = [nearer(g, r) for g, r in zip(found.gradients, roundings, strict=True)]
    return Stacked(gradients, found.own_losses)
