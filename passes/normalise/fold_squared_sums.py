"""Fold squared sums: given a sum of squared outer products, the contraction of squared operands.

    %o = dot_general %h[b, d], %l[b, f] batching b      %hh = multiply %h, %h
    %s = multiply %o, %o                            =>  %ll = multiply %l, %l
    %g = reduce add %s across b                         %g = dot_general %hh, %ll contracting b

This is what `jax.vmap(jax.grad(loss))` with a mean of squares lowers to, for dense layers. The
product, with a slice for every example, is no longer made. So too for whatever is summed over: over
all dimensions but b, it becomes the product of two norms.

Only where rounding is all that can differ: in f32 and f64. A product in bf16 or f16 is rounded, and
may vanish, before it is squared; it stays as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, is_static_array
from hlo_surgery.passes.ir.mlir import Module, Operation, Value
from hlo_surgery.passes.ir.modules import inline_calls
from hlo_surgery.passes.ir.traits import added_results, integers, precision
from hlo_surgery.passes.raising.raise_op import Raised, raise_op
from hlo_surgery.passes.terms.balanced import balanced, paired_dims
from hlo_surgery.passes.terms.steps import Dims, contracted

PRECISE = frozenset(map(np.dtype, ["f4", "f8"]))


def fold_squared_sums(module: Module) -> int:
    """Flatten the module and fold every such sum in it, in place; how many there were."""
    mlir.run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")
    inline_calls(module)
    count = 0
    for op in mlir.all_operations(module):
        found = _squares(op) if op.name == "stablehlo.reduce" else None
        if found is not None:
            contract = partial(_contract, found)
            mlir.replace(op, splice(mlir.operands(found.dot), contract, op))
            count += 1
    mlir.run_passes(module, "cse", "func.func(trivial-dce)")
    return count


@dataclass(frozen=True)
class _Squares:
    """The sum of the squares of what `dot` makes, an outer product, over some of its dimensions;
    `kept`: the others, in the result's order.
    """

    dot: Operation
    summed: Dims
    kept: Dims


def _squares(op: Operation) -> _Squares | None:
    """What a reduce sums, if it is squares, on top of zero; else None."""
    if len(op.results) != 1 or not all(added_results(op)) or not is_splat(op.operands[1], 0):
        return None
    found = _moved_product(op.operands[0], is_squared=False)
    if found is None:
        return None
    dot, order = found
    dims = integers(op, "dimensions")
    summed, kept = (
        tuple(own for d, own in enumerate(order) if (d in dims) is is_summed)
        for is_summed in (True, False)
    )
    shape = mlir.shape(dot.results[0])
    return _Squares(dot, summed, kept) if any(shape[d] > 1 for d in summed) else None


def _moved_product(value: Value, is_squared: bool) -> tuple[Operation, Dims] | None:
    """The outer product that a value is the square of, moved, and which dimension of it each of the
    value's is. `is_squared`: whether that which takes the value squares it.
    """
    op = mlir.defining_operation(value)
    if op is None or not _is_precise(value):
        return None
    match op.name:
        case "stablehlo.transpose":
            found = _moved_product(op.operands[0], is_squared)
            order = integers(op, "permutation")
            return found and (found[0], tuple(found[1][d] for d in order))
        case "stablehlo.multiply" | "chlo.square" if not is_squared:
            alike = op.operands[0] == op.operands[-1]
            return _moved_product(op.operands[0], True) if alike else None
        case "stablehlo.dot_general" if is_squared and _is_outer(op):
            return op, tuple(range(len(mlir.shape(value))))
        case _:
            return None


def _is_precise(value: Value) -> bool:
    """Whether the value is an array, not empty, of floats of at least 32 bits."""
    return is_static_array(value) and dtype_of(value) in PRECISE and 0 not in mlir.shape(value)


def _is_outer(dot: Operation) -> bool:
    """Whether a dot_general sums nothing, in the bits of its operands and by no algorithm of its
    own, and is larger than each of them.
    """
    dtypes = {dtype_of(v) for v in (*dot.operands, *dot.results)}
    if "algorithm" in dot.attributes or len(dtypes) != 1:
        return False
    one, other = contracted(dot).values()
    free = [math.prod(own.shape[d] for d in own.free) for own in (one, other)]
    return one.positions == 1 and min(free) > 1


def _contract(of: _Squares, *operands: jax.Array) -> list[jax.Array]:
    """The sum, contracted; where something is not finite, or what was lost of a factor may count,
    it is summed slice by slice.
    """
    labels = _labels(of.dot)
    factors = balanced(operands[0], operands[1], paired_dims(of.dot), lax.square)
    first, second = map(lax.square, factors)
    one, other = labels
    how = precision(of.dot)
    found = jnp.einsum(first, one, second, other, of.kept, precision=how)  # pyright: ignore
    finite = [jnp.all(jnp.isfinite(x)) for x in (*operands, first, second, found)]
    pairs = zip(operands, (first, second), strict=True)
    kept = jnp.all(jnp.stack([_is_kept(*pair) for pair in pairs]))
    # Beside factors of at most 1 nothing counts that is lost.
    is_small = jnp.maximum(*map(jnp.max, (first, second))) <= 1
    exact = jnp.all(jnp.stack(finite)) & (kept | is_small)
    return [lax.cond(exact, lambda: found, lambda: _slice_by_slice(of, operands, labels))]


def _is_kept(x: jax.Array, square: jax.Array) -> jax.Array:
    """Whether all squares are normal numbers but those of zeros."""
    return jnp.all((x == 0) | (square >= jnp.finfo(square.dtype).tiny))


def _labels(dot: Operation) -> list[list[int]]:
    """For each dimension of both operands that of the product; beyond these, what it contracts."""
    each, rank = contracted(dot).values(), len(mlir.shape(dot.results[0]))
    batch, *_ = (range(len(own.batch)) for own in each)
    free = iter(range(len(batch), rank))
    labels: list[list[int]] = []
    for own in each:
        numbers = (*batch, *islice(free, len(own.free)), *range(rank, rank + len(own.summed)))
        by_dim = dict(zip((*own.batch, *own.free, *own.summed), numbers, strict=True))
        labels.append([by_dim[d] for d in sorted(by_dim)])
    return labels


def _slice_by_slice(
    of: _Squares, operands: Sequence[jax.Array], labels: Sequence[list[int]]
) -> jax.Array:
    """The sum, which holds one slice along the largest of what is summed at a time."""
    shape, product = mlir.shape(of.dot.results[0]), cast(Raised, raise_op(of.dot))
    along = max(of.summed, key=lambda d: shape[d])
    pairs = [*zip(operands, labels, strict=True)]

    def slice_at(number: jax.Array | int) -> jax.Array:
        taken = (
            lax.dynamic_slice_in_dim(x, number, 1, own.index(along)) if along in own else x
            for x, own in pairs
        )
        (made,) = product(*taken)
        return jnp.einsum(lax.square(made), [*range(made.ndim)], of.kept)

    return lax.fori_loop(1, shape[along], lambda i, total: total + slice_at(i), slice_at(0))
