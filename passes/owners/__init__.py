"""Owners: which one example each element of a value depends on; where examples meet otherwise than
in a sum is refused here.
"""
