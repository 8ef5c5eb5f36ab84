"""Curvature: what it costs, and the same numbers beside what registers layers."""
