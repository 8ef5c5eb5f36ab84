"""Structure: which dimensions of which values count by the same digits, found by unification.

`digits.py`: digits, and how two runs of them are unified; `rules.py`: the factors of an op's
dimensions; `pieces.py`, `indices.py`: the ops that take parts, by numbers in the text and by
indices; `structure.py`: what is known of a module; `unification.py`: the pass that fills it.
"""
