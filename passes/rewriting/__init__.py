"""Rewriting: statistics of the gradients of a block, computed at its end and in its loops."""
