"""Structure: which dimensions of which values count by the same digits, found by unification.

`digits.py`: digits, and how two runs of them are unified; `structure.py`: the factors of an op's
dimensions, and what is known of a module; `places.py`: the ops that take parts, by numbers in the
text and by indices; `unification.py`: the pass that fills it.
"""
