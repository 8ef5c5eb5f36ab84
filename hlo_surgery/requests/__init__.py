"""Requests: what a user asks, of which arguments and outputs, checked before any rewriting.

request              what is asked of a module, by position
groups               which gradients a statistic takes together
in_axes              which arguments hold examples, and along which axes
segments             which rows are of which examples, by ids
leaves               which leaves are traced; devices, flags, and what modules hide
gradient_outputs     which outputs are gradients, and which the loss
updated_arguments    outputs that are arguments with a step, and ports' paths
declaring            what a function says of itself: examples one by one, constants
options              how to plan, and what devices compute and move a second
"""
