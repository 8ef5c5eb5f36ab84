"""Bugs in what is known of sums of which each element is one over some of the examples."""

from tools.soundness_bugs.bug import Bug

FILE = "owners/alignment/grouped_sums.py"

GROUPED_SUMS = [
    Bug(
        FILE,
        "        yield from _of_kept_rows(met) if met and met.keeps_rows() else ()\n",
        "",
        "constants by group beside groups' sums",
    ),
    Bug(
        FILE,
        "        yield from _of_weights(owners, met) if met else ()\n",
        "",
        "constants by group beside sums by a matrix",
    ),
    Bug(
        FILE,
        "            yield from places_of_sets(op, number, known[value])\n",
        "            pass\n",
        "constants by group beside sums of groups of groups",
    ),
    Bug(
        FILE,
        "            yield from _updated(owners, op, number, known[value])\n",
        "            pass\n",
        "constants by group below groups' sums that were put over others",
    ),
    Bug(
        FILE,
        "(sets := _landed_sets(owners, op))",
        "(sets := None)",
        "constants by segment beside segments' sums",
    ),
]
