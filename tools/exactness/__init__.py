"""Statistics of dumped gradients, held against gradients of one example at a time."""
