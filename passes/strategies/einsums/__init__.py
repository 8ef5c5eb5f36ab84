"""Sites as einsums, lhs[g, t, d], rhs[g, t, f] -> [g, d, f], and what their factors alone tell.

einsums         which slices are some, and what moves and scales them
factors         the two arrays that one multiplies
ghost           norms and inner products
kronecker       second moments of each factor, and projections
segments        phi of rows that an example's positions are summed in
fused           one kernel; `mosaic` has it for TPU, `triton` for GPU
"""
