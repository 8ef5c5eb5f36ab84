"""Rows of examples by ids: owners that are known as the program runs, as values made of its own."""
