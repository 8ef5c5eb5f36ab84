"""Contributions: what flows into each example's own copy of the parameters, where whatever else is
mixed counts as a constant of the batch.
"""
