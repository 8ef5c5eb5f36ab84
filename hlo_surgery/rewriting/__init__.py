"""Rewriting: from a module and a request to one with statistics, by calling the passes in order."""
