"""Strategies: the ways from a gradient's terms to measures of the examples' own, and the choice.

strategy            what a strategy is, and what it is asked
choice              the table of them; which is taken
gradient_costs      what each is predicted to take
lift                every example's gradient, all at once or a few at a time: the definition
loop_examples       how a loop goes over examples
square              phi of the operands, and `square_operands` how
reweight_examples   sums with weights
alike               gradients that share one trace
einsums/            ways that take gradients as sums of outer products
"""
