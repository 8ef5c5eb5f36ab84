"""Sites as einsums, lhs[g, t, d], rhs[g, t, f] -> [g, d, f], and what their factors alone tell."""
