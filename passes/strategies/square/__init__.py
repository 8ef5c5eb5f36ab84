"""Square: elementwise statistics from contractions of squared operands."""
