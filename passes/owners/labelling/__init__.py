"""Labelling: who owns each element of a value, and what ops that only move elements do to that."""
