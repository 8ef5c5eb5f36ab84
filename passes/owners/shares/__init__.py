"""Whether all examples have as much of each constant that is added to a gradient."""
