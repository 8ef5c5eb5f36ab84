"""Term lookups: gathers and dynamic slices of rows, done to terms at the same indices.

What is looked up is its owner's, and that of the index.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import gather_numbers, integers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.following.outside import outside
from hlo_surgery.passes.owners.following.term_moves import Labels
from hlo_surgery.passes.owners.following.terms import NONE, Array, Following, Term
from hlo_surgery.passes.raising.indexing import (
    gather_dimension_numbers,
    index_vectors_last,
)


def gathered(following: Following, op: Operation, labels: Labels) -> Term | None:
    """Whose each row found is; None where the indices differ from step to step of a loop."""
    found, result = [], op.results[0]
    if labels[0] is not None:
        found.append(_looked_up(following, op, labels[0]))
    if labels[1] is not None:
        found.append(_of_index(following, op, labels[1]))
    terms = [x for x in found if x is not None]
    return following.joined(result, "index", terms) if len(terms) == len(found) else None


def _looked_up(following: Following, op: Operation, x: Term) -> Term | None:
    numbers = gather_numbers(op)
    dims, sizes = gather_dimension_numbers(numbers), integers(op, "slice_sizes")
    placed = {*dims.start_index_map, *dims.operand_batching_dims}
    shape = mlir.shape(op.operands[0])
    if not x.varying & placed:
        return _windows(
            following, op, x, dims.offset_dims, _offset_sources(dims, len(shape)), sizes
        )
    indices = outside(following, op.operands[1])
    if indices is None:
        return None
    whole = tuple(n if d in placed | x.varying else 1 for d, n in enumerate(shape))
    taken = tuple(sizes[d] if whole[d] != 1 else 1 for d in range(len(shape)))
    last = numbers.index_vector_dim
    result = [
        1 if k in dims.offset_dims and whole[_source(dims, k, len(shape))] == 1 else n
        for k, n in enumerate(mlir.shape(op.results[0]))
    ]

    def made(y: Array, at: Array) -> Array:
        rows = jnp.broadcast_to(y, whole)
        clip = lax.GatherScatterMode.CLIP
        return lax.gather(rows, index_vectors_last(at, last), dims, taken, mode=clip)

    return following.term(("gather", str(numbers), whole, taken), result, [x, indices], made)


def _offset_sources(dims: lax.GatherDimensionNumbers, rank: int) -> list[int]:
    """The dimensions of the operand that windows have, in order."""
    lost = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    return [dim for dim in range(rank) if dim not in lost]


def _source(dims: lax.GatherDimensionNumbers, dim: int, rank: int) -> int:
    return _offset_sources(dims, rank)[sorted(dims.offset_dims).index(dim)]


def _windows(
    following: Following,
    op: Operation,
    x: Term,
    offsets: Sequence[int],
    sources: Sequence[int],
    sizes: Sequence[int],
) -> Term:
    """Windows that all lie alike along the dimensions in which owners vary, from the first on."""
    shape = [1] * len(mlir.shape(op.results[0]))
    for place, dim in zip(sorted(offsets), sources, strict=True):
        shape[place] = sizes[dim] if dim in x.varying else 1
    index = tuple(slice(0, n) for n in sizes)
    return following.moved(
        ("windows", tuple(shape), tuple(sizes)), x, shape, lambda y: y[index].reshape(shape)
    )


def _of_index(following: Following, op: Operation, x: Term) -> Term:
    """The owners of index vectors, along the result's dimensions that count them."""
    numbers = gather_numbers(op)
    single = of_vectors(following, op, x, numbers.index_vector_dim)
    rank = len(mlir.shape(op.results[0]))
    places = [dim for dim in range(rank) if dim not in numbers.offset_dims]
    return laid_at(following, single, places, rank)


def of_vectors(following: Following, op: Operation, x: Term, last: int) -> Term:
    """One owner for each index vector, without the dimension along which its numbers lie."""
    if last == len(x.shape):
        return x
    one = following.over(op.results[0], "index vector", x, [last])
    shape = [n for dim, n in enumerate(one.shape) if dim != last]
    return following.moved(("squeeze", last), one, shape, lambda y: jnp.squeeze(y, last))


def laid_at(following: Following, x: Term, places: Sequence[int], rank: int) -> Term:
    """Dimensions put at these places, in order, among `rank`."""
    shape = [1] * rank
    for place, size in zip(places, x.shape, strict=True):
        shape[place] = size
    return following.moved(("laid", tuple(shape)), x, shape, lambda y: y.reshape(shape))


def dynamic_slice(following: Following, op: Operation, labels: Labels) -> Term | None:
    """Whose the elements of a slice are; None where it is not known which they are."""
    x, *starts = labels
    if x is None or any(start is not None for start in starts):
        return None
    shape, sizes = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    moving = [dim for dim in sorted(x.varying) if sizes[dim] != shape[dim]]
    found = [outside(following, op.operands[1 + dim]) for dim in moving]
    known = [start for start in found if start is not None]
    if len(known) < len(moving):
        return None
    new = [n if dim in x.varying else 1 for dim, n in enumerate(sizes)]

    def made(y: Array, *at: Array) -> Array:
        for dim, start in zip(moving, at, strict=True):
            y = lax.dynamic_slice_in_dim(y, start, sizes[dim], dim, allow_negative_indices=False)
        return y

    return following.term(("dynamic_slice", tuple(moving)), new, [x, *known], made)


def dynamic_update_slice(following: Following, op: Operation, labels: Labels) -> Term | None:
    """The joint owner of what is there and what is put, which must be whole where owners vary; what
    one example alone owns is put at its place.
    """
    if any(start is not None for start in labels[2:]):
        return None
    shape, sizes = mlir.shape(op.operands[0]), mlir.shape(op.operands[1])
    terms = [x for x in labels[:2] if x is not None]
    if any(shape[dim] != sizes[dim] for x in terms for dim in x.varying):
        return None
    if labels[1] is not None and not any(x.varying for x in terms):
        return _put(following, op, labels[0], labels[1])
    return following.joined(op.results[0], "beside", terms)


def _put(following: Following, op: Operation, old: Term | None, new: Term) -> Term | None:
    """Whose the elements are of what one example put somewhere; None where no one knows where."""
    shape, sizes = mlir.shape(op.operands[0]), mlir.shape(op.operands[1])
    moving = [dim for dim, n in enumerate(sizes) if n != shape[dim]]
    found = [outside(following, op.operands[2 + dim]) for dim in moving]
    known = [start for start in found if start is not None]
    if len(known) < len(moving):
        return None
    whole = [n if dim in moving else 1 for dim, n in enumerate(shape)]
    part = [n if dim in moving else 1 for dim, n in enumerate(sizes)]

    def made(y: Array, *others: Array) -> Array:
        x, at = (jnp.int32(NONE), others) if old is None else (others[0], others[1:])
        starts = [jnp.int32(0)] * len(shape)
        for dim, start in zip(moving, at, strict=True):
            starts[dim] = start.astype(jnp.int32)
        return lax.dynamic_update_slice(
            jnp.broadcast_to(x, whole),
            jnp.broadcast_to(y, part),
            starts,
            allow_negative_indices=False,
        )

    inputs = [new, *([] if old is None else [old]), *known]
    return following.term(("put", tuple(moving), old is None, tuple(part)), whole, inputs, made)


def selected(following: Following, op: Operation, labels: Labels) -> Term | None:
    """Whose each element is that is chosen by rows, where no example says which: the owner of what
    is not chosen, as of what was looked up out of bounds, does not count. None for other choices.
    """
    flags, places = _by_rows(op.operands[0])
    terms = [x for x in labels[1:] if x is not None]
    rows = {dim for x in terms for dim in x.varying}
    chooser = None if labels[0] is not None else outside(following, flags)
    if chooser is None or not rows.issuperset(places):
        return None
    shape = [max(x.shape[dim] for x in terms) for dim in range(len(terms[0].shape))]
    laid = [shape[dim] if dim in places else 1 for dim in range(len(shape))]
    known = tuple(x is None for x in labels[1:])

    def made(chosen: Array, *xs: Array) -> Array:
        left = iter(xs)
        one, other = (jnp.int32(NONE) if is_none else next(left) for is_none in known)
        return jnp.broadcast_to(jnp.where(chosen.reshape(laid), one, other), shape)

    return following.term(("select", known, tuple(laid)), shape, [chooser, *terms], made)


def _by_rows(flags: Value) -> tuple[Value, list[int]]:
    """Flags before they were spread, and the dimensions along which they differ, in order."""
    op, rank = mlir.defining_operation(flags), len(mlir.shape(flags))
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return flags, list(range(rank))
    dims, shape = integers(op, "broadcast_dimensions"), mlir.shape(op.operands[0])
    apart = list(dims) == sorted(dims) and 1 not in shape
    return (op.operands[0], list(dims)) if apart else (flags, list(range(rank)))


LOOKUPS: dict[str, Any] = {
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.gather": gathered,
}
