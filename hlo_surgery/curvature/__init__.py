"""Curvature: losses that statistics of curvature are taken of, and what is made of these."""
