"""Dataflow: what is known of values before any example is: where they come from, what ops do to
dimensions, the numbers of loops.
"""
