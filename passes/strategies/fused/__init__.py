"""Fused: one kernel contracts each example alone, and sums what is taken of its products."""
