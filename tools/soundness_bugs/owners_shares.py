"""Bugs in what judges whether all examples have as much of each constant."""

from tools.soundness_bugs.bug import Bug

FORMS = "owners/shares/share_forms.py"
EVEN = "owners/shares/even_shares.py"
RATIOS = "owners/shares/constant_ratios.py"
ROWS = "owners/shares/row_constants.py"
APART = "owners/alignment/apart.py"
OFFSETS = "owners/offsets.py"

SHARES = [
    Bug(
        EVEN,
        "        if share.beside and not _are_whole(group, apart):",
        "        if False:",
        "constants of some examples of a group",
    ),
    Bug(
        EVEN,
        "weight / max(len(examples), 1)",
        "weight",
        "as much of a constant for groups of other sizes",
    ),
    Bug(
        EVEN,
        "_note(owners, parts[share.beside], constant,",
        "_note(owners, parts[False], constant,",
        "constants in one example's value, as beside a sum of the others",
    ),
    Bug(
        EVEN,
        "known, before + ratio * each",
        "known, before + each",
        "other numbers of a constant for each group",
    ),
    Bug(
        EVEN,
        "return bool(found) and even and",
        "return bool(found) and",
        "constants of which groups have other parts",
    ),
    Bug(
        FORMS,
        "    if len(groups) > 1 or len(group.steps) !=",
        "    if len(group.steps) !=",
        "penalties that are added where several groups have met",
    ),
    Bug(
        FORMS,
        " or len(group.steps) != len(mlir.loops_around(value)):",
        ":",
        "a constant that a loop starts from, as one of each step",
    ),
    Bug(
        FORMS,
        "    if beside and len(set(groups)) > 1:",
        "    if False:",
        "penalties where several groups have met, moved afterwards",
    ),
    Bug(
        FORMS,
        "    if any(len(set(own.values())) > 1 for by_step in counts for own in by_step):",
        "    if False:",
        "penalties of groups that have an example twice",
    ),
    Bug(
        FORMS,
        "w.take(min(step, w.shape[axis] - 1), axis)",
        "w.take(0, axis)",
        "constants with a weight of each step",
    ),
    Bug(
        FORMS,
        "    if not has_constant(owners, value):",
        "    if True:",
        "constants in the rows of groups",
    ),
    Bug(
        RATIOS,
        "    if are_same(one, other, {}):",
        "    if True:",
        "other constants in each group's rows",
    ),
    Bug(
        RATIOS,
        "(has_constant(owners, one) or has_constant(owners, other))",
        "(has_constant(owners, one) and has_constant(owners, other))",
        "terms of which some have a constant and others none",
    ),
    Bug(
        RATIOS,
        "    if any(_takes_sums_as_constants(owners, op) for op in (one, other)):",
        "    if False:",
        "constants that each group scales by its own data",
    ),
    Bug(
        RATIOS,
        "if not same or not all(math.isclose(n, numbers[0], rel_tol=ROUNDING) for n in numbers):",
        "if not same:",
        "sums of constants with other numbers each",
    ),
    Bug(
        RATIOS,
        "    return sizes[0] / max(sizes[1], 1)",
        "    return 1.0",
        "as much of a constant from other numbers of rows",
    ),
    Bug(
        ROWS,
        "    return not differs and owners.beside.isdisjoint(beside)",
        "    return not differs",
        "constants that differ from row to row of a group",
    ),
    Bug(
        ROWS,
        "labels.varies_along(dim) and len(labels.digits[dim]) == 1 for",
        "labels.shape for",
        "other positions of the examples at each step, as their rows",
    ),
    Bug(
        APART,
        "    return 0 < len(examples) < owners.size or uneven",
        "    return 0 < len(examples) < owners.size",
        "constants of loops that take some examples twice",
    ),
    Bug(
        APART,
        "    return 0 < len(examples) < owners.size or uneven",
        "    return 1 < len(examples) < owners.size or uneven",
        "a mask of one example at a time",
    ),
    Bug(
        OFFSETS,
        "    owners.uneven.update(op.results)\n",
        "",
        "terms with a constant of some examples alone, or of one twice",
    ),
]
