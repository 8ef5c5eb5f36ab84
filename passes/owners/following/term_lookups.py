"""Term lookups: gathers, scatters and dynamic slices of rows, done to terms at the same indices.

What is looked up is its owner's, and that of the index. What lands on an element of a scatter has
one joint owner with what was there, or the examples of all that lands there are met.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.mlir import Operation, Value, stablehlo
from hlo_surgery.passes.owners.following.outside import outside
from hlo_surgery.passes.owners.following.term_moves import Labels
from hlo_surgery.passes.owners.following.terms import NONE, Array, Following, Term, flagged
from hlo_surgery.passes.raising.indexing import (
    gather_dimension_numbers,
    index_vectors_last,
    scatter_dimension_numbers,
)

HIGH = 2**31 - 1


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
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
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
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    single = _of_vectors(following, op, x, numbers.index_vector_dim)
    rank = len(mlir.shape(op.results[0]))
    places = [dim for dim in range(rank) if dim not in numbers.offset_dims]
    return _laid(following, single, places, rank)


def _of_vectors(following: Following, op: Operation, x: Term, last: int) -> Term:
    """One owner for each index vector, without the dimension along which its numbers lie."""
    if last == len(x.shape):
        return x
    one = following.over(op.results[0], "index vector", x, [last])
    shape = [n for dim, n in enumerate(one.shape) if dim != last]
    return following.moved(("squeeze", last), one, shape, lambda y: jnp.squeeze(y, last))


def _laid(following: Following, x: Term, places: Sequence[int], rank: int) -> Term:
    """Dimensions put at these places, in order, among `rank`."""
    shape = [1] * rank
    for place, size in zip(places, x.shape, strict=True):
        shape[place] = size
    return following.moved(("laid", tuple(shape)), x, shape, lambda y: y.reshape(shape))


def updates_of(following: Following, op: Operation, labels: Labels) -> Term | None:
    """Whose each update is, together with its index."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    rank = len(mlir.shape(op.operands[2]))
    terms = [] if labels[2] is None else [labels[2]]
    if labels[1] is not None:
        single = _of_vectors(following, op, labels[1], numbers.index_vector_dim)
        places = [dim for dim in range(rank) if dim not in numbers.update_window_dims]
        terms.append(_laid(following, single, places, rank))
    return following.joined(op.results[0], "update", terms) if terms else None


def scattered(following: Following, op: Operation, labels: Labels) -> Term | None:
    """Whose each element is after updates have landed; None where the indices differ from step to
    step of a loop.
    """
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    dims = scatter_dimension_numbers(numbers)
    indices = outside(following, op.operands[1])
    if indices is None:
        return None
    old, new = labels[0], updates_of(following, op, labels)
    windows = _window_dims(dims, len(mlir.shape(op.operands[0])))
    if not _is_placed(dims, old, new):
        return _beside(following, op, windows, old, new)
    whole, parts = _sizes(op, dims, windows, old, new)
    last, size = numbers.index_vector_dim, following.size

    def landed(combine: Callable[..., Array], nobody: int, x: Array, at: Array, y: Array) -> Array:
        drop = lax.GatherScatterMode.FILL_OR_DROP
        own, more = (jnp.where(z == NONE, nobody, z) for z in (x, y))
        return combine(own, index_vectors_last(at, last), more, dims, mode=drop)

    def operands(xs: Sequence[Array]) -> tuple[Array, Array, Array]:
        left = iter(xs[1:])
        none = jnp.int32(NONE)
        x, y = (none if term is None else next(left) for term in (old, new))
        return jnp.broadcast_to(x, whole), xs[0], jnp.broadcast_to(y, parts)

    def made(*xs: Array) -> Array:
        return landed(lax.scatter_max, NONE, *operands(xs))

    def met(*xs: Array) -> Array:
        x, at, y = operands(xs)
        high = landed(lax.scatter_max, NONE, x, at, y)
        low = landed(lax.scatter_min, HIGH, x, at, y)
        several = (high >= 0) & (low != high)

        def put(rows: Array) -> Array:
            drop, none = lax.GatherScatterMode.FILL_OR_DROP, jnp.zeros(whole, jnp.float32)
            return lax.scatter_add(none, index_vectors_last(at, last), rows, dims, mode=drop)

        _, back = jax.vjp(put, jnp.zeros(parts, jnp.float32))
        (found,) = back(several.astype(jnp.float32))
        return flagged(size, x, several) | flagged(size, y, found > 0)

    inputs = [indices, *(term for term in (old, new) if term is not None)]
    how = (str(numbers), whole, parts, old is None, new is None)
    following.check(op.results[0], "landed", following.term(("met at", *how), [size], inputs, met))
    return following.term(("scatter", *how), whole, inputs, made)


def _window_dims(dims: lax.ScatterDimensionNumbers, rank: int) -> list[int]:
    """The dimensions of the operand that windows have, in order."""
    lost = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    return [dim for dim in range(rank) if dim not in lost]


def _is_placed(dims: lax.ScatterDimensionNumbers, old: Term | None, new: Term | None) -> bool:
    """Whether owners vary along dimensions in which the indices say where to put things, or from
    what one example alone owns to what is beside it.
    """
    placed = {*dims.scatter_dims_to_operand_dims, *dims.operand_batching_dims}
    if old is not None and old.varying & placed:
        return True
    if new is None:
        return False
    return not new.varying or bool(new.varying - set(dims.update_window_dims))


def _beside(
    following: Following,
    op: Operation,
    windows: Sequence[int],
    old: Term | None,
    new: Term | None,
) -> Term | None:
    """The joint owner where indices do not tell owners apart; along these windows must be whole."""
    shape = mlir.shape(op.operands[0])
    terms = [] if old is None else [old]
    if new is not None:
        numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        sizes = [mlir.shape(op.operands[2])[d] for d in numbers.update_window_dims]
        pairs = zip(windows, numbers.update_window_dims, sizes, strict=True)
        if any(w in new.varying and n != shape[d] for d, w, n in pairs):
            return None
        kept = [new.shape[w] for w in numbers.update_window_dims]
        laid = [1] * len(shape)
        for dim, size in zip(windows, kept, strict=True):
            laid[dim] = size
        terms.append(following.moved(("window", tuple(laid)), new, laid, lambda y: y.reshape(laid)))
    return following.joined(op.results[0], "beside", terms)


def _sizes(
    op: Operation,
    dims: lax.ScatterDimensionNumbers,
    windows: Sequence[int],
    old: Term | None,
    new: Term | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of operand and updates, 1 along whole windows in which no owner varies."""
    whole, parts = list(mlir.shape(op.operands[0])), list(mlir.shape(op.operands[2]))
    for dim, window in zip(windows, dims.update_window_dims, strict=True):
        varies = (old is not None and dim in old.varying) or (
            new is not None and window in new.varying
        )
        is_whole = whole[dim] == parts[window] and dim not in dims.scatter_dims_to_operand_dims
        if is_whole and not varies:
            whole[dim] = parts[window] = 1
    return tuple(whole), tuple(parts)


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
