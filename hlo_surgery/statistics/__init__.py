"""Statistics: what can be asked of the examples' gradients, and the measures each is made of."""
