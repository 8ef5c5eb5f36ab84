"""Rewriting: from a module and a request to one with statistics, by calling the passes in order.

pipeline       the six steps
results        the arrays of all statistics, and the trees that they are
diagnostics    what is said at the call, as a warning or refusal
cache          rewritten modules, and what was measured, on disk
autotune       the fastest of some strategies, by calls
predicted      about what the plain gradient takes
"""
