"""Rewriting: the compiler's part of the six steps, which the product's pipeline calls.

analysed        steps 1 and 2; at the end, what main returns
by_microbatch   where statistics are computed: in the steps of one loop, or at the end of main
replacement     steps 3 to 5 for the gradients of one block, which may be a loop's body
measurements    what statistics are combined of, while the new code is traced
"""
