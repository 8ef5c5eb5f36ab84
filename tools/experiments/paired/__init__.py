"""Paired comparisons: methods on the same data from the same start, and what may be claimed."""
