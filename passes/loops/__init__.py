"""Loops: gradients that a loop makes step by step, as a scan over layers or over time does."""
