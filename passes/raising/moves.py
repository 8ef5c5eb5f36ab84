"""Raising rules for the ops that only move elements, or leave each where it is."""

from functools import partial

from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.raising.table import Raised, raises, single


@raises("stablehlo.transpose")
def transpose(op: Operation) -> Raised:
    """Permute the dimensions."""
    return single(partial(lax.transpose, permutation=integers(op, "permutation")))


@raises("stablehlo.reshape")
def reshape(op: Operation) -> Raised:
    """The same elements in row-major order, in the result's shape."""
    return single(partial(lax.reshape, new_sizes=mlir.shape(op.results[0])))


@raises("stablehlo.broadcast_in_dim")
def broadcast_in_dim(op: Operation) -> Raised:
    """Repeat along the dimensions that the operand lacks, or has with size 1."""
    shape, dimensions = mlir.shape(op.results[0]), integers(op, "broadcast_dimensions")
    return single(partial(lax.broadcast_in_dim, shape=shape, broadcast_dimensions=dimensions))


@raises("stablehlo.pad")
def pad(op: Operation) -> Raised:
    """Pad at the edges and between elements; a negative edge padding cuts off."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    config = list(zip(*(integers(op, name) for name in names), strict=True))
    return single(partial(lax.pad, padding_config=config))


@raises("stablehlo.concatenate")
def concatenate(op: Operation) -> Raised:
    """Join along one dimension."""
    dimension = integer(op, "dimension")
    return single(lambda *operands: lax.concatenate(operands, dimension))


@raises("stablehlo.slice")
def slice_(op: Operation) -> Raised:
    """A slice between fixed limits, with strides."""
    names = ("start_indices", "limit_indices", "strides")
    return single(partial(lax.slice, **{name: integers(op, name) for name in names}))


@raises("stablehlo.reverse")
def reverse(op: Operation) -> Raised:
    """Reverse the order along dimensions."""
    return single(partial(lax.rev, dimensions=integers(op, "dimensions")))


@raises("stablehlo.optimization_barrier", "sdy.sharding_constraint")
def identity(_: Operation) -> Raised:
    """The operands, as they are."""
    return lambda *operands: operands
