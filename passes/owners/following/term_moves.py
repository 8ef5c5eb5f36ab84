"""Term moves: ops that put elements elsewhere, done to terms as they are done to the elements.

What a constant fills in is nobody's along the dimensions in which owners vary; where they do not,
it has the owner of what is beside it, which may stand for nobody, unless that is all of one
example. Rows that are put beside each
other, feature by feature, are to have one owner.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.following.terms import NONE, Array, Following, Term

Labels = Sequence[Term | None]
Move = Callable[[Following, Operation, Labels], Term | None]
PADDINGS = ("edge_padding_low", "edge_padding_high", "interior_padding")
BOUNDS = ("start_indices", "limit_indices", "strides")


def _transposed(following: Following, op: Operation, labels: Labels) -> Term | None:
    (x,), order = labels, integers(op, "permutation")
    assert x is not None
    shape = [x.shape[dim] for dim in order]
    return following.moved(("transpose", order), x, shape, lambda y: jnp.transpose(y, order))


def _reversed(following: Following, op: Operation, labels: Labels) -> Term | None:
    (x,) = labels
    assert x is not None
    dims = tuple(dim for dim in integers(op, "dimensions") if dim in x.varying)
    return following.moved(("reverse", dims), x, x.shape, lambda y: lax.rev(y, dims))


def _sliced(following: Following, op: Operation, labels: Labels) -> Term | None:
    (x,) = labels
    assert x is not None
    rows = list(zip(*(integers(op, name) for name in BOUNDS), strict=True))
    taken = tuple(row if dim in x.varying else (0, 1, 1) for dim, row in enumerate(rows))
    sizes = mlir.shape(op.results[0])
    shape = [sizes[dim] if dim in x.varying else 1 for dim in range(len(sizes))]
    index = tuple(slice(*row) for row in taken)
    return following.moved(("slice", taken), x, shape, lambda y: y[index])


def _padded(following: Following, op: Operation, labels: Labels) -> Term | None:
    """None where what is filled in is an example's."""
    x, filling = labels
    if x is None or filling is not None:
        return None
    rows = list(zip(*(integers(op, name) for name in PADDINGS), strict=True))
    # What is filled in beside what one example alone owns is no row of its.
    apart = x.varying or {dim for dim, row in enumerate(rows) if any(row)}
    config = tuple(row if dim in apart else (0, 0, 0) for dim, row in enumerate(rows))
    old, sizes = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    whole = [n if dim in apart else 1 for dim, n in enumerate(old)]
    shape = [n if dim in apart else 1 for dim, n in enumerate(sizes)]

    def made(y: Array) -> Array:
        return lax.pad(jnp.broadcast_to(y, whole), jnp.int32(NONE), config)

    return following.moved(("pad", config, tuple(whole)), x, shape, made)


def _broadcast(following: Following, op: Operation, labels: Labels) -> Term | None:
    (x,), dims = labels, integers(op, "broadcast_dimensions")
    assert x is not None
    shape = [1] * len(mlir.shape(op.results[0]))
    for dim, size in zip(dims, x.shape, strict=True):
        shape[dim] = size

    # StableHLO has the dimensions in any order.
    def made(y: Array) -> Array:
        order = sorted(range(len(dims)), key=lambda k: dims[k])
        return jnp.transpose(y, order).reshape(shape)

    return following.moved(("broadcast", dims), x, shape, made)


def _concatenated(following: Following, op: Operation, labels: Labels) -> Term | None:
    along = integer(op, "dimension")
    sizes = [mlir.shape(v)[along] for v in op.operands]
    found = [x for x in labels if x is not None]
    if all(x.varying and along not in x.varying for x in found):
        return following.joined(op.results[0], "beside", found)
    rank = len(found[0].shape)
    others = [max(x.shape[dim] for x in found) for dim in range(rank)]
    whole = [[*others[:along], n, *others[along + 1 :]] for n in sizes]

    def made(*ys: Array) -> Array:
        left = iter(ys)
        parts = [
            jnp.full(shape, NONE, jnp.int32) if x is None else jnp.broadcast_to(next(left), shape)
            for x, shape in zip(labels, whole, strict=True)
        ]
        return jnp.concatenate(parts, along)

    shape = [*others[:along], sum(sizes), *others[along + 1 :]]
    known = tuple(x is None for x in labels)
    return following.term(("concatenate", along, tuple(sizes), known), shape, found, made)


def _reshaped(following: Following, op: Operation, labels: Labels) -> Term | None:
    (x,) = labels
    assert x is not None
    old, new = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    whole, shape = list(x.shape), [1] * len(new)
    for before, after in _groups(old, new):
        if x.varying.intersection(before):
            for dim in before:
                whole[dim] = old[dim]
            for dim in after:
                shape[dim] = new[dim]
    sizes = tuple(whole)

    def made(y: Array) -> Array:
        return jnp.broadcast_to(y, sizes).reshape(shape)

    return following.moved(("reshape", sizes), x, shape, made)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The least runs of dimensions, before and after, that hold as many elements."""
    groups: list[tuple[list[int], list[int]]] = []
    before, after = list(range(len(old))), list(range(len(new)))
    while before or after:
        one, other = before[:1], after[:1]
        del before[:1], after[:1]
        count, counted = _product(old, one), _product(new, other)
        while count != counted:
            if (count < counted or not after) and before:
                one.append(before.pop(0))
            else:
                other.append(after.pop(0))
            count, counted = _product(old, one), _product(new, other)
        groups.append((one, other))
    return groups


def _product(sizes: Sequence[int], dims: Sequence[int]) -> int:
    found = 1
    for dim in dims:
        found *= sizes[dim]
    return found


TERM_MOVES: dict[str, Move] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.concatenate": _concatenated,
    "stablehlo.pad": _padded,
    "stablehlo.reshape": _reshaped,
    "stablehlo.reverse": _reversed,
    "stablehlo.slice": _sliced,
    "stablehlo.transpose": _transposed,
}
