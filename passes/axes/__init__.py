"""Axes: what each value is to the examples, on the structure of the module.

`analysis.py` begins here. `classes.py`, `state.py`: what is found. `classify.py` goes from op to
op, `control_flow.py` and `until_done.py` through loops and branches; `meeting.py`: what an op makes
of examples; `constants.py`: what no example reaches, and data; `constant_part.py`: what is added to
the examples' own; `verdicts.py`, `reasons.py`: whether an output is a sum over them, and if not,
why.
"""
