"""Bugs in what judges whether all examples have as much of each constant."""

from tools.soundness_bugs.bug import Bug

FORMS = "owners/shares/share_forms.py"
EVEN = "owners/shares/even_shares.py"
RATIOS = "owners/shares/constant_ratios.py"
ROWS = "owners/shares/row_constants.py"
SUMS = "owners/shares/row_sums.py"
APART = "owners/alignment/apart.py"
OFFSETS = "owners/offsets.py"
TERMS = "owners/shares/weighted_terms.py"

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
        "    if are_same(one, other, {}, behind_barriers) or _are_spread_alike(one, other):",
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
        "    return rows_summed(owners, op, number)",
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
        SUMS,
        "isinstance(known, Owned) and all(counts_examples(known.labels, dim) for dim in cut)",
        "isinstance(known, Owned)",
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
        "    owners.uneven.update(results)\n",
        "",
        "terms with a constant of some examples alone, or of one twice",
    ),
    Bug(
        FORMS,
        "    if any(op is None or op.name in mlir.CONTROL_FLOW for op in makers.values()):",
        "    if any(op is None for op in makers.values()):",
        "all that a loop is given, as what it sums",
    ),
    Bug(
        FORMS,
        "    if op.name == mlir.BARRIER:",
        "    if False:",
        "what passes a barrier beside a sum, as a part of it",
    ),
    Bug(
        FORMS,
        "[op.operands[i] for i in own_operands(owners, op)]",
        "list(op.operands)",
        "examples of whose data a constant is made, as those of the sum it scales",
    ),
    Bug(
        RATIOS,
        "    if not (is_product or is_linear or all(",
        "    if False and not (is_product or is_linear or all(",
        "ops that are not linear in constants",
    ),
    Bug(
        RATIOS,
        "_all(op)) for op in (one, other))\n",
        "_all(op)) for op in (one,))\n",
        "a maximum where the other group has a sum",
    ),
    Bug(
        RATIOS,
        "    if not same or not all(",
        "    if not all(",
        "constants that pass other kernels",
    ),
    Bug(
        RATIOS,
        "    return all(_are_examples(owners, v, dim) for v in (one, other) for dim in differing)",
        "    return True",
        "rows of other numbers of positions",
    ),
    Bug(
        RATIOS,
        "    if one == other:",
        "    if one.type == other.type:",
        "rows of other arrays, as those of one",
    ),
    Bug(
        SUMS,
        "(finds_rows(owners, op) or _takes_entry(owners, op)):",
        "bool(op):",
        "other columns of one array, as its rows",
    ),
    Bug(
        SUMS,
        "return entry if _takes_turns(owners, write.operands[2 + cut[0]], counted.trips) else None",
        "return entry",
        "a stack of which one entry alone is written",
    ),
    Bug(
        SUMS,
        "        times *= rows / others",
        "        times *= others / others",
        "as much of a constant in all, whatever the number of rows",
    ),
    Bug(
        SUMS,
        "    return count / max(sums, 1) * (owned or 1.0)",
        "    return count / max(sums, 1)",
        "rows of nobody among examples' rows, as theirs",
    ),
    Bug(
        SUMS,
        "    return sums and (counted or not dims)",
        "    return sums",
        "sums over positions, as over examples",
    ),
    Bug(
        RATIOS,
        "    return _places_cut(owners, one) == _places_cut(owners, other)",
        "    return True",
        "another place of each row",
    ),
    Bug(
        RATIOS,
        "    if one.name == BROADCAST and not _repeat_alike(one, other):",
        "    if False:",
        "constants that are repeated along another dimension of each row",
    ),
    Bug(
        RATIOS,
        "    return dims == others and are_same(first, second, {}, behind_barriers)",
        "    return are_same(first, second, {}, behind_barriers)",
        "constants along another dimension of each row",
    ),
    Bug(
        ROWS,
        "    return not differs and owners",
        "    return owners",
        "constants in rows that differ from step to step",
    ),
    Bug(
        ROWS,
        "own.keys() >= wanted and set(own.values()) == {1}",
        "own.keys() >= wanted",
        "examples that lie across places of constants",
    ),
    Bug(
        ROWS,
        "own.keys() >= wanted and set(own.values()) == {1}",
        "set(own.values()) == {1}",
        "a constant in the rows of some of those that are summed",
    ),
    Bug(
        ROWS,
        "    if op is None or op.name in mlir.CONTROL_FLOW:",
        "    if op is None:",
        "constants of a branch that differ from row to row",
    ),
    Bug(
        SUMS,
        "    return labels.varies_along(dim) and len(labels.digits[dim]) == 1",
        "    return labels.varies_along(dim)",
        "every third number of all rows",
    ),
    Bug(
        ROWS,
        "is_slice and counts_examples(labels, dim)",
        "counts_examples(labels, dim)",
        "another column of each row",
    ),
    Bug(
        TERMS,
        "if is_product else 1 / numbers)\n    return None",
        "if is_product else 1 / numbers)\n    return operands[0]",
        "sums so far that are scaled by what only a run tells",
    ),
    Bug(
        APART,
        "                alone |= of_steps(tuple(labels))",
        "                alone |= {examples} if 0 < len(examples) < owners.size else set()",
        "constants of single examples that all are taken, but one a step",
    ),
    Bug(
        "owners/labelling/fillings.py",
        "        if len(users) != 1 or users[0].name != ADD:",
        "        if len(users) != 1:",
        "a constant that is carried on behind a barrier, as the sum so far",
    ),
]
