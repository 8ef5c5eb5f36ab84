"""What the experiments with data attribution share: digits, a small network, methods."""
