"""Measures: reductions of one gradient's examples, by definition; which examples they are over.

measures      what a measure is, and most of them
moments       variances, padding, and how measures of parts of a batch are joined
projections   one example's gradient by random signs
kronecker     second moments of a gradient's two factors
"""
