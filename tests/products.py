"""Products of parameters of which a part is run: each value, or pair of values, is in a case."""

from collections import Counter
from itertools import combinations, product


def covering(*axes, together=1):
    """Few cases, for `parametrize`: each value is in one of them (`together=2`: each pair is)."""
    cases = list(product(*map(range, map(len, axes))))
    return [
        tuple(axis[i] for axis, i in zip(axes, case, strict=True))
        for case in sorted(fewest(cases, together))
    ]


def fewest(cases, together):
    """Cases that hold all that any does, taken greedily; among equals one of what is rarest."""
    missing = {held for case in cases for held in held_by(case, together)}
    taken, used = set(), Counter()

    def gain(case):
        return len(missing.intersection(held_by(case, together))), -sum(
            used[value] for value in enumerate(case)
        )

    while missing:
        best = max(cases, key=gain)
        taken.add(best)
        used.update(enumerate(best))
        missing.difference_update(held_by(best, together))
    return taken


def held_by(case, together):
    """The values of a case, each with its axis, this many at a time."""
    return list(combinations(enumerate(case), together))
