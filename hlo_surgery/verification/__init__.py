"""Verification: a rewritten module held against the original one, by running the original.

verify          the verdict on a function or a module
runs            the original on copies of each example; whether a loss is a mean
expectations    what each statistic ought to be, from these
found           every measure of gradients by its definition
inputs          inputs that are drawn, and batches made of others
tolerances      how far rounding may move a result
"""
