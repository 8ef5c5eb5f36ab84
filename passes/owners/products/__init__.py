"""Products of sums over the examples: with other sums, and with data of the batch."""
