"""Frameworks: what their models are to JAX. None is imported: whoever has a model has done so."""
