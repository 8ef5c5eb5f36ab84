"""Raising: StableHLO ops as JAX functions, one rule an op, so that `vmap` lifts them and `scan` loops over them."""
