"""Families of models with free sizes, a file each; every loss is a mean over the examples."""
