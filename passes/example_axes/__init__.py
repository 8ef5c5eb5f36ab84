"""Example axes: which values hold which examples, in which dimension, how they meet; refusals."""
