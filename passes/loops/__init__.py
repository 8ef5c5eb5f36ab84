"""Loops: gradients that a loop makes step by step, as a scan over layers or over time does.

loop_sums       the loop that adds gradients up or stacks them
hoist           contractions moved out of it, behind it
lift_values     a second carry with every example's own
microbatches    a loop whose steps take examples of their own
"""
