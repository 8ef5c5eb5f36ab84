"""Even shares: whether all examples bring as much of each constant to a sum.

    %s = add (add (dot %x[:4]..), %p), (multiply 1/2 (add (dot %x[4:6]..), %p))     %p: nobody's

With a quarter of %p for each of 4 examples, and a quarter of it for each of 2, it makes no
difference whether it is theirs or nobody's. So it is with constants in each one's rows, if all have
them there: what is in an example's own value is taken as its own, and what is beside a sum as
nobody's. What is added to a group within which examples are taken apart may be meant for some.
"""

import numpy as np

from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.constant_ratios import constant_ratio
from hlo_surgery.passes.owners.shares.share_forms import Group, share_form
from hlo_surgery.passes.owners.shares.step_numbers import StepNumbers, within
from hlo_surgery.passes.owners.shares.weighted_terms import is_as_much

Examples = frozenset[int]
# Some examples, and which is not looked into.
UNKNOWN: Examples = frozenset([-1])
# What is added up of one constant, [examples].
Parts = list[tuple[Value, StepNumbers]]


def have_even_shares(owners: Owners, output: Value, apart: frozenset[Examples]) -> bool:
    """Whether there are constants in an output of which all examples have as much each.

    `apart`: the examples of each op on some of them. Were these a part of a group's, or with
    others, a constant beside the group might be theirs.
    """
    form, parts = share_form(owners, output), {True: Parts(), False: Parts()}
    for share, weights in (form or {}).items():
        constant, group = share.constant, share.group
        if constant is None:
            continue
        if group is None or not all(group.examples):
            return False
        if share.beside and not _are_whole(group, apart):
            return False
        _note(owners, parts[share.beside], constant, _by_example(owners.size, group, weights))
    found = [each for some in parts.values() for _, each in some]
    even = all(is_as_much(each, each[0]) for each in found)
    return bool(found) and even and UNKNOWN not in apart


def _are_whole(group: Group, apart: frozenset[Examples]) -> bool:
    """Whether no op has some of a step's examples, or some of several steps'."""
    return all(
        examples.isdisjoint(taken) or examples == taken
        for examples in group.examples
        for taken in apart
    )


def _by_example(size: int, group: Group, weights: StepNumbers) -> StepNumbers:
    """How often each example has a part of what its group brings; [size]."""
    every = np.broadcast_to(within(weights, len(group.steps)), group.steps).ravel()
    total = np.zeros(size)
    for examples, weight in zip(group.examples, every.tolist(), strict=True):
        total[list(examples)] += weight / max(len(examples), 1)
    return total


def _note(owners: Owners, parts: Parts, constant: Value, each: StepNumbers) -> None:
    """Add what examples have of a constant to what they have of another that is made alike."""
    for number, (known, before) in enumerate(parts):
        if ratio := constant_ratio(owners, constant, known):
            parts[number] = known, before + ratio * each
            return
    parts.append((constant, each))
