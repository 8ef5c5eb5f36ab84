"""Verification: a rewritten module held against the original one, by running the original."""
