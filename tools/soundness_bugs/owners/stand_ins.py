"""Bugs in what is known of constants that may be in the place of what examples own."""

from tools.soundness_bugs.bug import Bug

STAND, ROWS = "owners/shares/stand_ins.py", "owners/shares/row_constants.py"
RATIOS = "owners/shares/constant_ratios.py"

STAND_INS = [
    Bug(
        "owners/verdicts.py",
        "    reason = reason or stand_in_reason(owners, block, gradient)\n",
        "",
        "constants that may be in the place of some examples' values",
    ),
    Bug(
        STAND,
        "        if any(_is_constant(owners, v) for v in list(op.operands)[1:]):",
        "        if any(_is_constant(owners, v) for v in list(op.operands)[2:1]):",
        "a choice by elements",
    ),
    Bug(
        STAND,
        "            if any(_is_constant(owners, v) for v in _returned(op, number)):",
        "            if all(_is_constant(owners, v) for v in _returned(op, number)):",
        "a branch",
    ),
    Bug(
        STAND,
        "        if begins or any(_is_constant(owners, v) for v in _returned(loop, number)):",
        "        if begins:",
        "what a loop carries on from an example's value",
    ),
    Bug(
        STAND,
        "        if begins and (counted is None or not counted.trips):",
        "        if begins and counted and not counted.trips:",
        "a loop that may run no step",
    ),
    Bug(
        STAND,
        "            note(value, Held.WHOLE if told else Held.WHOLE | Held.HIDDEN, op)",
        "            note(value, Held.WHOLE if told else Held.HIDDEN, op)",
        "a choice of integers",
    ),
    Bug(
        STAND,
        "    if op.name == SELECT:\n        return 0 in certain",
        "    if op.name == SELECT:\n        return bool(certain)",
        "a constant that an example's value is chosen beside",
    ),
    Bug(
        STAND,
        "    return op.name in READS_ALL and bool(certain)",
        "    return bool(certain)",
        "what is put beside an example's value",
    ),
    Bug(
        STAND,
        "        return held & Held.HIDDEN if linear else Held.NOT",
        "        return Held.NOT",
        "constants that are added to an example's value",
    ),
    Bug(
        STAND,
        "    return not gaps",
        "    return True",
        "products with what is constant in part",
    ),
    Bug(
        STAND,
        "        return Held.HIDDEN\n    return held if linear",
        "        return Held.NOT\n    return held if linear",
        "sums of products of which some are constant",
    ),
    Bug(
        STAND,
        "held if linear or Held.WHOLE not in held else held | Held.HIDDEN",
        "held",
        "constants that an op which is not linear makes of constants",
    ),
    Bug(
        ROWS,
        "    return told or is_stand_in(owners, value)",
        "    return told",
        "constants in some rows that no offset tells, beside an offset that all have",
    ),
    Bug(
        RATIOS,
        "_rows(owners, op) / _rows(owners, twin) if alike else None",
        "_rows(owners, op) / _rows(owners, twin)",
        "what is made of other constants in one group than in another",
    ),
    Bug(
        RATIOS,
        "    if not _are_of_a_kind(owners, one, other):",
        "    if len(one.operands) != len(other.operands):",
        "another function of the constants in one group than in another",
    ),
]
