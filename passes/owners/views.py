"""Views: batches one behind the other along a dimension, with constants as further views.

    %d = concatenate %x, %zeros, dim = 0    %x: owners 0 .. B-1    =>  row B + b is b's, too

Sound, since an owner may stand for NONE; and each example gets its share of the constants, since
they are the same for all.
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.classes import Owned, Owners
from hlo_surgery.passes.owners.constants import is_alike
from hlo_surgery.passes.owners.labelling.digits import repeated
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels


def with_views(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> Labels:
    """Where views of the batch lie one behind the other, constants that are the same for each
    example are a view as well.
    """
    if labels.is_conflicting or op.name not in ("stablehlo.pad", "stablehlo.concatenate"):
        return labels
    if op.name == "stablehlo.pad":
        low = integers(op, "edge_padding_low")
        high = integers(op, "edge_padding_high")
        dims = [dim for dim, amounts in enumerate(zip(low, high, strict=True)) if any(amounts)]
    else:
        dims = [integer(op, "dimension")]
        nobodys = (v for v, c in zip(op.operands, classes, strict=True) if c.is_shared)
        dims = dims if all(_is_even(v, dims[0]) for v in nobodys) else []
    for dim in dims:
        if (labels.owners == NONE).any() and labels.varies_along(dim):
            labels = repeated(labels, dim, owners.size)
    return labels


def _is_even(value: mlir.Value, dim: int) -> bool:
    """Whether all places along a dimension hold the same."""
    return is_alike(value, PerExample(dim), mlir.shape(value)[dim])
