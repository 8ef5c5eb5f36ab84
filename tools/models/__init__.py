"""The models that the tools measure and dump, in plain JAX, and the layers that they are made of.

Sizes are free in `families/`, and tiny in `fixtures/` and `dumped.py`.
"""
