"""Axes: what each value is to the examples, on the structure of the module.

`state.py`: what is found. `classify.py` begins and goes from op to op, `control_flow.py` through
loops and branches; `meeting.py`: what an op makes of examples; `constants.py`: what no example
reaches, and data; `verdicts.py`, `reasons.py`: whether an output is a sum over them, and if not,
why.
"""
