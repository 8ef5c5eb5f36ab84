"""Kronecker factors: of gradients that are sums of outer products, each factor's second moment.

    g_b = c sum_t l[b, t] r[b, t]',  of T positions t     =>     left [D, D], right [F, F]

    expand:  left = mean over b of sum_t l l',  right = mean over b and t of (c r) (c r)'
    reduce:  left = mean over b of l_b l_b',    right = mean over b of r_b r_b'
             with the mean l_b over t of l, and the sum r_b over t of c r

(Eschenhagen et al., "Kronecker-Factored Approximate Curvature for Modern Neural Network
Architectures", section 3; with the means over b of Martens and Grosse.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.measures import OfPositions, stacks_as_it_is
from hlo_surgery.passes.measures.moments import MEANS, Join, squared_magnitude
from hlo_surgery.passes.terms.epilogue import Reading
from hlo_surgery.passes.terms.steps import Given, GradientSlice

Form = Literal["expand", "reduce"]
Side = Literal["left", "right"]


class KroneckerFactors(NamedTuple):
    """The factors of one parameter: `left` over its first axes [D, D], `right` over the others
    [F, F], both behind the axes that it has for stacked layers; [D], or [F], for a diagonal.

    >>> import jax.numpy as jnp
    >>> left, right = KroneckerFactors(jnp.eye(2), 3 * jnp.eye(1))
    >>> jnp.kron(left, right).tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """

    left: Array
    right: Array


class Eigenbases(KroneckerFactors):
    """Orthonormal columns in place of factors, as `eigenbases` makes them: where the one is asked
    for the other is refused, though both have the same shapes.

    >>> import jax.numpy as jnp
    >>> Eigenbases(jnp.eye(2), jnp.eye(1)).left.shape
    (2, 2)
    """


def is_factors(x: Any) -> bool:
    """Whether this is a pair of factors or bases, which is a leaf among parameters."""
    return isinstance(x, KroneckerFactors)


def stacked_axes(factors: KroneckerFactors) -> int:
    """How many axes of stacked layers lie in front: one side at least is a matrix."""
    return max(side.ndim for side in factors) - 2


def fits(parameter: Array | jax.ShapeDtypeStruct, found: Any) -> bool:
    """Whether these are factors of such a parameter."""
    if not isinstance(found, KroneckerFactors) or max(side.ndim for side in found) < 2:
        return False
    stacked = stacked_axes(found)
    own = [side.shape[stacked:] for side in found]
    alike = all(side.shape[:stacked] == parameter.shape[:stacked] for side in found)
    square = all(shape in (shape[:1], 2 * shape[:1]) and shape for shape in own)
    shape = parameter.shape[stacked:]
    # How many elements first axes have, and the others, wherever they are parted.
    parted = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(len(shape) + 1)]
    return alike and square and (own[0][0], own[1][0]) in parted


def rotated(gradient: Array, basis: KroneckerFactors) -> Array:
    """P' g Q, with P and Q for left and right; where one is a diagonal, its axes stay.

    >>> turned = KroneckerFactors(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.ones((1, 1)))
    >>> rotated(jnp.array([3.0, 4.0]), turned).tolist()
    [4.0, 3.0]
    """
    left, right = basis
    stacked = stacked_axes(basis)
    matrix = gradient.reshape(*gradient.shape[:stacked], left.shape[-1], right.shape[-1])
    if left.ndim > stacked + 1:
        matrix = jnp.matmul(jnp.swapaxes(left, -1, -2), matrix, precision="highest")
    if right.ndim > stacked + 1:
        matrix = jnp.matmul(matrix, right, precision="highest")
    return matrix.reshape(gradient.shape)


def rotated_square(gradient: Array, basis: KroneckerFactors) -> Array:
    """|P' g Q|**2, elementwise."""
    return squared_magnitude(rotated(gradient, basis))


@dataclass(frozen=True)
class KroneckerFactor(OfPositions):
    """One of the two factors of a gradient, in at least float32."""

    needs = (
        "Kronecker factors need a gradient that is a sum of outer products over the positions of "
        "each of two examples or more, all of the same axes"
    )
    help = (
        "keep this parameter out of what is differentiated, as with argnums, and ask for "
        "second_moment of it: a diagonal, which is exact everywhere"
    )
    join: ClassVar[Join | None] = MEANS
    name: ClassVar[str] = "kronecker_factors"
    side: Side
    form: Form

    def is_stackable(self, behind: Sequence[Reading], write: Operation) -> bool:
        """Where slices are stacked one behind the other, as they are."""
        return stacks_as_it_is(behind, write)

    def behind(self, tail: GradientSlice, stack: Array, made: Value, given: Given) -> Array:
        """The stack of the slices' factors, [steps, ...]."""
        return stack
