"""Raising: StableHLO ops as JAX functions, one rule an op, so that `vmap` and `scan` take them."""
