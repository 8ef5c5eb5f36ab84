"""Dataflow: what is known of values before any example is.

ancestors        where values come from, and what is marked as a constant
kernels          factors: which dimensions of operands and results an op reads together
mosaic_kernels   the same of a kernel's grid
numbers          counters and indices, worked out for all steps of a loop at once
vanishing        what is zero whatever the arguments are
axis             the place of one example in a dimension
"""
