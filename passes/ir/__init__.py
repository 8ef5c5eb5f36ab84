"""The IR: the one door to `jaxlib.mlir`; what all passes ask of ops, values, types and locations.

Nothing here knows of examples.

mlir        the door: the one context, walks over ops and values
traits      what each op is, a row for all that are alike; its attributes
errors      refusals, with the user's lines
constants   elements, and types
modules     calls inlined, placement set aside
"""
