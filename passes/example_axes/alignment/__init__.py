"""Alignment: values that no example reaches, yet with something for each, as dropout masks have."""
