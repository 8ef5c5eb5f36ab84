"""Emitting: new ops and new values in a module, and the module as something that JAX can call.

splice    the ops of a JAX function of a block's values, moved in; what each is for
rebuild   loops and branches with more carries and results
export    a module under `jax.jit`
"""
