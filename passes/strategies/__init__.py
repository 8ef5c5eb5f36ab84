"""Strategies: a file for each way from a gradient's terms to a statistic of the examples' own."""
