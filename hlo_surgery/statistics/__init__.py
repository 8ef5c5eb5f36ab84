"""Statistics: what can be asked of the examples' gradients, and the measures each is made of.

derived        statistics as values; numbers and trees that they take
elementwise    means of elementwise functions, and sums of these
factorable     whether a function is elementwise, and factorable
spreads        variances, signal to noise, histograms
norms          norms, inner products, the noise scale
weighted       sums with weights: clipped means and their like
directions     singular vectors; functions of whole gradients
kronecker      Kronecker factors of curvature
"""
