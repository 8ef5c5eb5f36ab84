"""Requests: what a user asks, of which arguments and outputs, checked before any rewriting."""
