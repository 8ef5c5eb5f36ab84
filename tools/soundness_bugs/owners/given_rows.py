"""Bugs in what is known of rows of nobody that get an owner on their way."""

from tools.soundness_bugs.bug import Bug

FILE = "owners/alignment/given_rows.py"

GIVEN_ROWS = [
    Bug(
        FILE,
        "given = _passed_on(owners, op) if op.name in PASSING else _made_of(owners, op)",
        "given = iter(()) if op.name in PASSING else _made_of(owners, op)",
        "constants by place that a loop over rows starts from, as everybody's",
    ),
    Bug(
        FILE,
        "given = _passed_on(owners, op) if op.name in PASSING else _made_of(owners, op)",
        "given = _passed_on(owners, op) if op.name in PASSING else iter(())",
        "constants by place below the examples' rows, laid out beside them, as everybody's",
    ),
    Bug(
        "owners/alignment/placements.py",
        "    owners.loops = [loop for loop in loops if loop]",
        "    owners.loops = []",
        "constants by place that a loop's steps pick beside examples' rows, as everybody's",
    ),
    Bug(
        FILE,
        "    return labels.varies or (isinstance(known, Owned) and known.labels.owners.size > 1)",
        "    return labels.varies",
        "constants by place, one for each step beside its row, as everybody's",
    ),
    Bug(
        FILE,
        "            pending += [(v, places) for v in ties(value)]",
        "            continue",
        "constants by place that went through a loop beside rows, as everybody's",
    ),
]
