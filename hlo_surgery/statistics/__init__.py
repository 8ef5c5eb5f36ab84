"""Statistics: what can be asked of the examples' gradients, and the measures of one gradient that each is made of."""
