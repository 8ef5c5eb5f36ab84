"""Bugs in what counts as a constant because it is marked as one, or reaches marks alone."""

from tools.soundness_bugs.bug import Bug

FILE = "dataflow/held.py"

HELD = [
    Bug(
        FILE,
        "all(_is_held(user, found) for user in users)",
        "any(_is_held(user, found) for user in users)",
        "what is marked once and used elsewhere too",
    ),
    Bug(
        FILE,
        "return bool(users) and all(",
        "return all(",
        "what nothing uses, as a constant",
    ),
    Bug(
        FILE,
        "return len(results) > 0 and found.issuperset(results)",
        "return len(results) == 0 or found.issuperset(results)",
        "what main returns, as a constant",
    ),
    Bug(
        "owners/analysis.py",
        "list(map(as_given, demoted(owners, op, classes, summed_operands(classes))))\n"
        "    if op.name == mlir.BARRIER:",
        "list(classes)\n    if op.name == mlir.BARRIER:",
        "a marked sum as a term of each example's",
    ),
    Bug(
        "owners/analysis.py",
        "owners.trained -= owners.held.intersection(op.results)",
        "owners.trained -= owners.trained.intersection(op.results) if owners.held else set()",
        "all that parameters reach, where anything is marked",
    ),
]
