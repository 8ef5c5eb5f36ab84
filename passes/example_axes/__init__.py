"""Example axes: which values hold which examples, along which dimension, and how they meet; what is refused is so here."""
