"""Terms: a gradient as the sum of its examples' shares: the ops that sum them, and those behind."""
