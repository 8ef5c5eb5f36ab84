"""Raising: StableHLO ops as JAX functions, one rule an op, so that `vmap` and `scan` take them.

raise_op       the table; elementwise ops, ops that move elements, and ops without operands
contractions   products, convolutions, reductions
indexing       gather, scatter, dynamic slices
leading_dims   the same op with dimensions in front
"""

from hlo_surgery.passes.raising import contractions, indexing, raise_op

# Importing these has entered their rules in the table.
__all__ = ["contractions", "indexing", "raise_op"]
