"""Bugs in what is known of elements of nobody beside the examples', and of where it is told."""

from tools.soundness_bugs.bug import Bug

FILE, OFFSETS = "owners/labelling/fillings.py", "owners/offsets.py"
HIDDEN = "owners/shares/hidden_constants.py"

FILLINGS = [
    Bug(
        FILE,
        "        return all(filled[i] for i in FACTORS[op.name])",
        "        return False",
        "products of constants of nobody, as zeros",
    ),
    Bug(
        FILE,
        "any(some and _takes_nobodys(known, dim, own) for known, own, some in sides)",
        "False",
        "constants at places of their own that a choice takes, as zeros",
    ),
    Bug(
        FILE,
        "    filled = not isinstance(known, Owned) or known.filled\n",
        "    filled = not isinstance(known, Owned) or known.is_shared\n",
        "constants that lie beside examples' values before, as zeros",
    ),
    Bug(
        OFFSETS,
        "return (known.offset or known.filled) and not",
        "return known.offset and not",
        "a sum of some examples' rows and of constants in rows of nobody",
    ),
    Bug(
        OFFSETS,
        "    return not (by_factors and all(",
        "    return by_factors and not (all(",
        "constants of nobody that land where an example's value is",
    ),
    Bug(
        OFFSETS,
        "        return any(known.labels is not own[0].labels for known in own)",
        "        return False",
        "constants of nobody that are added to an example's value, place by place",
    ),
    Bug(
        OFFSETS,
        "    hidden = known.filled and",
        "    hidden = known.data and",
        "constants of nobody where an owner is put in their place",
    ),
    Bug(
        OFFSETS,
        "        owners.merged.update(op.results)",
        "        owners.merged.clear()",
        "constants between the rows of a list that is cut, as theirs who have the rows",
    ),
    Bug(
        "owners/owned_ops.py",
        "    added = found.adds_nobodys(number) and fills(owners, op, classes)",
        "    added = False",
        "constants of nobody that are summed with an example's own terms",
    ),
    Bug(
        "owners/factors.py",
        "return (self.hides or rows > left) and meet",
        "return rows > left and meet",
        "constants of nobody in a window that an example's row is in",
    ),
    Bug(
        "owners/factors.py",
        "linearity.sums(self.op, index) or self.op.name == SORT",
        "linearity.sums(self.op, index)",
        "constants of nobody that are sorted among an example's rows",
    ),
    Bug(
        "owners/shares/row_constants.py",
        "    if known.filled:\n        return False\n",
        "",
        "constants in rows of nobody as in all rows of examples",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "    if 0 in shape or not shape or len(axes) > 1 or any(axis < steps for axis in axes):",
        "    if 0 in shape or not shape or any(axis < steps for axis in axes):",
        "a choice by two dimensions as one by the first of them",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "or any(axis < steps for axis in axes):\n        return None",
        "or any(axis > steps + len(shape) for axis in axes):\n        return None",
        "a choice that differs by step as that of the first step",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "    sides = [np.where(own, places, -1) for own in (is_first, ~is_first)]",
        "    sides = [np.where(own, places, -1) for own in (~is_first, is_first)]",
        "the side that is not chosen",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "    if any(start.size > 1 for start in starts):\n        raise Undefined\n",
        "    starts = tuple(start.ravel()[:1] for start in starts)\n",
        "numbers that each step puts elsewhere, as where the first step does",
    ),
    Bug(
        "loops/written_out.py",
        "            carries = _copied_step(loop, carries)",
        "            carries = _copied_step(loop, mlir.operands(loop))",
        "each step of a loop as the first one",
    ),
    Bug(
        "terms/kept_examples.py",
        "    if met is None or not met.adds_up(0):\n        return None\n    telling",
        "    if met is None:\n        return None\n    telling",
        "products in which several examples meet, element by element",
    ),
    Bug(
        "terms/kept_examples.py",
        "if set(_varying_axes(met)) <= set(_layout(met, i).along)), None)",
        "if set(_varying_axes(met)) & set(_layout(met, i).along)), None)",
        "a factor that does not reach all places where owners differ, as what tells them",
    ),
    Bug(
        "owners/labelling/frames.py",
        "return len(set(totals[np.unique(owners[owned])].tolist())) <= 1",
        "return True",
        "constants in the place of what one example owns as in that of what each does",
    ),
    Bug(
        OFFSETS,
        "        return kept if gives_evenly(labels, kept) else compact(labels)",
        "        return kept",
        "an owner in the place of constants of which others have none",
    ),
    Bug(
        "owners/loops.py",
        "    if any(has_constants(v, known) and hides_constants(known, labels) for",
        "    if any(known.data and hides_constants(known, labels) for",
        "a constant that a loop's step, or a branch, puts in one example's place",
    ),
    Bug(
        HIDDEN,
        "    return not gives_evenly(WRITES[op.name](owners, op, operands), labels)",
        "    return False",
        "constants in a buffer's places that examples have at other steps",
    ),
    Bug(
        HIDDEN,
        "    is_left = left or _is_read_by_steps(op)",
        "    is_left = left",
        "zeros that a step reads in the place of what a later one writes, as nothing",
    ),
    Bug(
        OFFSETS,
        "        uneven = uneven or not lands_alike(owners, op, labels)",
        "        uneven = uneven and not lands_alike(owners, op, labels)",
        "a constant at a given place as that of the example that has it",
    ),
    Bug(
        "owners/owned_ops.py",
        "[hidden_at(owners, op)] if chooses_apart(op, classes, results[0]) else results",
        "results",
        "a constant that a truth puts in one example's place as that example's",
    ),
    Bug(
        "owners/loops.py",
        "    if may_begin and hides_constants(known, labels):",
        "    if may_begin and known.data and hides_constants(known, labels):",
        "a constant in one example's place at a step, where it has a value at others",
    ),
    Bug(
        HIDDEN,
        "    if not (is_left or is_put):",
        "    if not is_left:",
        "constants that are put into a buffer at a step, as an example's of another",
    ),
]
