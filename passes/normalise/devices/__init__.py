"""Devices: from a program for each device, as of `jax.shard_map`, to one for all at once."""
