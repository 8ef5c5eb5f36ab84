"""Strategies: one file for each way to compute a statistic of the examples' gradients from a gradient's terms."""
