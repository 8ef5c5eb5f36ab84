"""Ghost norms: norms and inner products of gradients from pairs of positions of their factors, and
which positions a site has.
"""
