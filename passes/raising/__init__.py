"""Raising: StableHLO ops as JAX functions, one rule an op, so that `vmap` and `scan` take them."""

from hlo_surgery.passes.raising import contractions, indexing, raise_op

# Importing these has entered their rules in the table.
__all__ = ["contractions", "indexing", "raise_op"]
