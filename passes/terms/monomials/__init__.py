"""Monomials: values as products of elements of smaller values, and sums of such products."""
