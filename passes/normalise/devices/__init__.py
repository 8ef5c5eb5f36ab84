"""Devices: from a program written for each device, as `jax.shard_map` makes it, to one for all devices at once."""
