"""Kronecker: second moments of the factors of gradients that are sums of outer products."""
