"""Targets: modules compiled for a device, here or ahead of time; their memory and time there."""
