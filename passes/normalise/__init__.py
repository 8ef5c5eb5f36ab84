"""Normalising: from a module as any frontend dumps it to one flat, static `main` of StableHLO."""
