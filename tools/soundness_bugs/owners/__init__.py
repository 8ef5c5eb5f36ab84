"""Bugs of the one domain in which gradients are accepted, a file for each of its rooms."""
