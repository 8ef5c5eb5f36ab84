"""Optimizers that divide by curvature, which their state is told every few steps."""
