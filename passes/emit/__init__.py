"""Emitting: new ops and new values in a module, and the module as something that JAX can call."""
