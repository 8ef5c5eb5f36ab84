"""Measures: reductions of one gradient's examples, by definition; which examples they are over."""
