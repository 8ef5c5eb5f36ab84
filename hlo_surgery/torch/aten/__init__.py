"""aten: JAX functions of PyTorch's operators. What has none here is taken apart by PyTorch, into
its primitives, which have some.

operators      the table, and what an operator is told beside its operands
elementwise    PyTorch's primitives of single numbers; tensors of numbers that are known
reductions     over dimensions, cumulation along one, sorting
moves          the same numbers elsewhere
indexing       looking up and putting at numbers that tensors hold
contractions   products of matrices, convolutions
windows        pooling and resampling along the last dimensions
"""

from hlo_surgery.torch.aten import (
    contractions,
    elementwise,
    indexing,
    moves,
    reductions,
    windows,
)
from hlo_surgery.torch.aten.operators import TABLE

__all__ = ["TABLE", "contractions", "elementwise", "indexing", "moves", "reductions", "windows"]
