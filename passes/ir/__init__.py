"""The IR: the one door to `jaxlib.mlir`, and what all passes ask of ops, values, types and locations. Nothing here
knows of examples.
"""
