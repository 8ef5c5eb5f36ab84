"""Rewriting: from a module and a request to one with statistics, by calling the passes in order.

pipeline             the six steps
results              the arrays of all statistics, and the trees that they are
diagnostics          what is said at the call, as a warning or refusal
cache                rewritten modules, and what was measured, on disk
autotune             the fastest of some strategies, by calls
predicted            about what the plain gradient takes
asked_function       a gradient function's own module for a call, and what is asked of it
gradient_function    the function with statistics, rewritten as often as it is needed
"""
