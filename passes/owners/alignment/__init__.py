"""Alignment: values that no example reaches, and that hold something for each nevertheless."""
