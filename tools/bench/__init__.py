"""Benches: what surgery takes, beside what else gives the same; and whether programs have changed.

A bench is a file here, a table of `tools/RESULTS.md` its output.
"""
