"""Costs: what a gradient's contractions compute and move, and how long a device takes for it."""
