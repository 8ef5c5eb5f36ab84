"""Weighted sums of the examples' gradients: the weights, squares, directions made of them."""
