"""Rewriting: from a module and a request to a module with statistics; here the passes are called, in order."""
