"""Scheduled: what the text of a compiled module tells of its memory, time and work."""
