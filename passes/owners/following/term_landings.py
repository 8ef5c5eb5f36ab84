"""Term landings: scatters of rows, done to terms at the same indices.

What lands on an element has one joint owner with what was there, or the examples of all that lands
there are met.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, stablehlo
from hlo_surgery.passes.owners.following.outside import outside
from hlo_surgery.passes.owners.following.term_lookups import laid_at, of_vectors
from hlo_surgery.passes.owners.following.term_moves import Labels
from hlo_surgery.passes.owners.following.terms import NONE, Array, Following, Term, flagged
from hlo_surgery.passes.raising.indexing import index_vectors_last, scatter_dimension_numbers

HIGH = 2**31 - 1


def updates_of(following: Following, op: Operation, labels: Labels) -> Term | None:
    """Whose each update is, together with its index."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    rank = len(mlir.shape(op.operands[2]))
    terms = [] if labels[2] is None else [labels[2]]
    if labels[1] is not None:
        single = of_vectors(following, op, labels[1], numbers.index_vector_dim)
        places = [dim for dim in range(rank) if dim not in numbers.update_window_dims]
        terms.append(laid_at(following, single, places, rank))
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
