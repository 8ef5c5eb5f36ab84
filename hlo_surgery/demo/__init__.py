"""The demo: models in plain JAX, and the steps that they are taken through."""
