"""The IR: the one door to `jaxlib.mlir`; what all passes ask of ops, values, types and locations.

Nothing here knows of examples.
"""
