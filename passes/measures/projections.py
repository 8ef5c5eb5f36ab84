"""Projections: one example's gradient as a few sums of its elements, with random signs.

    Projected, a matrix [D, F]:  P' g Q / k,      [k, k], with signs P [D, k] and Q [F, k]
    DenselyProjected, any g [n]: R' g / sqrt(k),  [k],    with signs R [n, k]

Over the choice of signs, inner products of projections have those of the gradients as their mean
(Achlioptas, "Database-friendly random projections"; with two factors Choe et al., "What is Your
Data Worth to GPT?", section 3). The signs depend on the seed and the gradient's shape alone.

Signs: random +1 and -1, the same whatever runs them: by seed and place, on any device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.measures import RowMeasure, TakingCost, stacks_as_it_is
from hlo_surgery.passes.terms.epilogue import Reading
from hlo_surgery.passes.terms.steps import Dims, Given, GradientSlice

WORD_BITS = 32
# So many are constants of the program, a byte each: to draw them, a TPU takes longer than for a
# small model's gradient, and half as long to take their bits apart.
WRITTEN = 1 << 18
SEEDS = 1 << 2 * WORD_BITS
# What signs are of, the first number of their place.
DIMENSIONS, BLOCKS, OUTPUTS, COLUMNS = range(4)


def random_signs(seed: int, place: Sequence[int | Array], count: int, k: int) -> Array:
    """[count, k], float32: k for each of so many elements; others at another place, and for another
    seed below SEEDS.
    """
    is_known = all(isinstance(number, int) for number in place)
    if is_known and count * k <= WRITTEN:
        with jax.ensure_compile_time_eval():
            drawn = np.asarray(_drawn(seed, place, count, k).astype(jnp.int8))
        return jnp.asarray(drawn).astype(jnp.float32)
    return _drawn(seed, place, count, k).astype(jnp.float32)


def _drawn(seed: int, place: Sequence[int | Array], count: int, k: int) -> Array:
    """[count, k] integers, by the first k bits of each row of random words."""
    # The user's settings choose generators, widths, offsets and layouts: none may change a sign.
    halves = jnp.asarray([seed >> WORD_BITS, seed % (1 << WORD_BITS)], jnp.uint32)
    with jax.threefry_partitionable(True):
        key = jax.random.wrap_key_data(halves, impl="threefry2x32")
        shape = count, -(-k // WORD_BITS)
        words = jax.random.bits(reduce(jax.random.fold_in, place, key), shape, jnp.uint32)
    bits = words[..., None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32) & 1
    return 1 - 2 * bits.reshape(count, shape[1] * WORD_BITS)[:, :k].astype(jnp.int32)


# As many elements of a gradient have their signs in memory at once where each has k of its own.
BLOCK = 1 << 14
SIGN_BYTES = 4


@dataclass(frozen=True)
class Projected(RowMeasure):
    """Each example's gradient between two factors, [B, k, k]; of a vector or a number [B, k].

    A factor over several dimensions is the product of signs for each. So a stack of layers is
    projected as the sum of its layers' projections, with signs.
    """

    k: int
    seed: int

    def each(self, gradient: Array, mean: Array | None) -> Array:
        """P' g Q over k, or P' g over its root."""
        first, second = sides(gradient.shape)
        own = widened(gradient)
        left = self.signs(gradient.shape, first).astype(own.dtype)
        if not second:
            return jnp.matmul(own.ravel(), left, precision="highest") / math.sqrt(self.k)
        right = self.signs(gradient.shape, second).astype(own.dtype)
        matrix = own.reshape(len(left), len(right))
        found = jnp.matmul(left.T, matrix, precision="highest")
        return jnp.matmul(found, right, precision="highest") / self.k

    def taking(self, kind: jax.ShapeDtypeStruct) -> TakingCost:
        """The contraction with the first factor."""
        return TakingCost(flops=2 * kind.size * self.k)

    def signs(self, shape: Sequence[int], dims: Dims) -> Array:
        """Of the elements along these of a gradient's dimensions, products of signs, [elements, k],
        float32.

        A dimension goes by its place from the end, and one of size 1 has no signs: a slice of a
        stack has those that it would have alone.
        """
        found = jnp.ones((1, self.k), jnp.float32)
        for d in dims:
            if shape[d] != 1:
                place = DIMENSIONS, len(shape) - d
                own = random_signs(self.seed, place, shape[d], self.k)
                found = (found[:, None] * own).reshape(-1, self.k)
        return found

    def is_stackable(self, behind: Sequence[Reading], write: Operation) -> bool:
        """Where a stack of slices, one behind the other, is split into factors as its slices are,
        or into steps and slices.
        """
        whole, part = mlir.shape(write.results[0]), mlir.shape(write.operands[1])
        alike = sides(whole) == sides(part) or _is_stack_of_vectors(whole, part)
        return stacks_as_it_is(behind, write) and alike

    def behind(self, tail: GradientSlice, stack: Array, made: Value, given: Given) -> Array:
        """From the projections of all slices, [steps, B, ...]."""
        whole = mlir.shape(made)
        steps = self.signs(whole, (0,)).astype(stack.dtype)
        if _is_stack_of_vectors(whole, (1, *whole[1:])):
            outer = jnp.einsum("lbj,li->bij", stack, steps, precision="highest")
            return outer / math.sqrt(self.k)
        return jnp.einsum("lbi...,li->bi...", stack, steps, precision="highest")


@dataclass(frozen=True)
class DenselyProjected(RowMeasure):
    """Each example's gradient by signs of its own for each element, [B, k]."""

    name: ClassVar[str] = "projected"
    k: int
    seed: int

    def each(self, gradient: Array, mean: Array | None) -> Array:
        """R' g over the root of k, a block of elements at a time."""
        flat = widened(gradient).ravel()
        width = min(BLOCK, max(flat.size, 1))
        count = max(-(-flat.size // width), 1)
        blocks = jnp.pad(flat, (0, count * width - flat.size)).reshape(count, width)

        def add(total: Array, number: Array) -> tuple[Array, None]:
            signs = random_signs(self.seed, (BLOCKS, number), width, self.k)
            own = signs.astype(blocks.dtype)
            return total + jnp.matmul(blocks[number], own, precision="highest"), None

        zeros = jnp.zeros(self.k, blocks.dtype)
        total, _ = jax.lax.scan(add, zeros, jnp.arange(len(blocks)))
        return total / math.sqrt(self.k)

    def taking(self, kind: jax.ShapeDtypeStruct) -> TakingCost:
        """The contraction, and the signs: as many examples as are at hand share them."""
        signs = kind.size * self.k
        return TakingCost(flops=2 * signs, drawn=signs * SIGN_BYTES)


def sides(shape: Sequence[int]) -> tuple[Dims, Dims]:
    """The dimensions of the first and of the second factor, which are as few elements as can be;
    of a vector all are the first's.
    """
    dims = tuple(range(len(shape)))
    if sum(size > 1 for size in shape) < 2:
        return dims, ()
    sizes = [math.prod(shape[:d]) + math.prod(shape[d:]) for d in dims[1:]]
    split = 1 + sizes.index(min(sizes))
    return dims[:split], dims[split:]


def _is_stack_of_vectors(whole: Sequence[int], part: Sequence[int]) -> bool:
    """Whether slices have one factor, and the stack of them the steps as another; of numbers the
    stack is a vector, of one factor.
    """
    others = tuple(range(1, len(whole)))
    return bool(others) and not sides(part)[1] and sides(whole) == ((0,), others)
