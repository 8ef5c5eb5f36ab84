"""Two analyses of where the examples lie, held against each other."""
