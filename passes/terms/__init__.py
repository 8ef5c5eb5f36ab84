"""Terms: a gradient as the sum of its examples' shares: the ops that sum them, and those behind.

steps                one op of a slice; what the examples are to each value, as emission asks it
gradient_slices      from a gradient back to its sites
slice_functions      a slice as a JAX function of one example's operands
site_functions       sites whose rows are split, or that the op behind turns or adds to
convolutions         filter gradients by patches
epilogue             what the tail does to elements
ragged               whose rows of ragged axes are
scaling              numbers with exponents of their own
monomials            products of functions of one outer product
contract_monomials   their sums, with no array of all indices
fold_squared_sums    a module's own sums of squares, by these
"""
