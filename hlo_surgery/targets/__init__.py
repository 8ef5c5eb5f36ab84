"""Targets: modules compiled for a device, here or ahead of time, and what they take of its memory and time."""
