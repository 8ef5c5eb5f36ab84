"""Bugs in what is known of constants that lie beside the examples."""

from tools.soundness_bugs.bug import Bug

ALIGNMENT = [
    Bug(
        "owners/alignment/step_weights.py",
        "    enough = len(by_step) + 1",
        "    enough = 2",
        "constants that a step hands on to a later one",
    ),
    Bug(
        "owners/alignment/step_weights.py",
        "        if not are_alike(brought, last):",
        "        if False:",
        "constants that steps bring in different parts",
    ),
    Bug(
        "owners/alignment/step_weights.py",
        "    if counted_loop(owners, loop) is None:\n        return [None",
        "    if False:\n        return [None",
        "constants as often as a loop within a step runs",
    ),
    Bug(
        "owners/alignment/step_weights.py",
        "    return None if varies(owners.varying, over, value) else {",
        "    return {",
        "constants that vary with the step",
    ),
    Bug(
        "owners/alignment/step_weights.py",
        "    return not any(varies(owners.varying, over, v) for t",
        "    return True or any(varies(owners.varying, over, v) for t",
        "constants with a weight of each step",
    ),
    Bug(
        "owners/alignment/step_weights.py",
        "alone = all(_is_of_the_step(owners, form) for form in used)",
        "alone = True",
        "sums so far that a step does something else with",
    ),
    Bug(
        "owners/alignment/step_weights.py",
        "return scaled(operands[1 - number], numbers if is_product else 1 / numbers)",
        "return operands[1 - number]",
        "constants of a sum that is scaled",
    ),
    Bug(
        "owners/alignment/step_constants.py",
        "    return [sums[value]] if value in sums else next_terms(owners, value)",
        "    return [] if value in sums else next_terms(owners, value)",
        "constants of a sum that is handed on as it was before the step",
    ),
    Bug(
        "owners/alignment/constant_parts.py",
        "return frozenset(initial_operands(op))",
        "return frozenset()",
        "masks by group that scale what the groups' sums start from",
    ),
    Bug(
        "owners/alignment/constant_parts.py",
        "return any(is_shared(owners.of(v)) and not vanishes(v) for v in terms)",
        "return all(is_shared(owners.of(v)) and not vanishes(v) for v in terms)",
        "masks that scale a sum with a constant beside its terms",
    ),
    Bug(
        "owners/alignment/constant_parts.py",
        "        return ties(value)\n",
        "        return []\n",
        "masks that scale a constant that a loop adds to its sum",
    ),
    Bug(
        "owners/alignment/example_rows.py",
        "not (owners.moved or is_whole) or",
        "not is_whole or",
        "rows of parameters that are moved, beside terms of the examples",
    ),
    Bug(
        "owners/alignment/example_rows.py",
        "    if owners.moved:\n        return owners.moved\n",
        "",
        "rows of parameters that are moved before they meet the examples linearly",
    ),
    Bug(
        "owners/alignment/example_rows.py",
        "if not along and not of_size:",
        "if not of_size:",
        "rows of parameters for the examples, laid out along other dimensions",
    ),
    Bug(
        "owners/alignment/apart.py",
        "outside = mlir.captured(op) if op.name in mlir.CONTROL_FLOW else []",
        "outside = []",
        "data that decides for some of the examples",
    ),
    Bug(
        "owners/alignment/apart.py",
        "        key = (op.name, *unmarked(op).items(), operands)",
        "        key = (op.name, *mlir.attributes(op).items())",
        "other data, as what was computed alike",
    ),
    Bug(
        "owners/alignment/placements.py",
        "        if (row == row[0]).all()\n",
        "        if (row == row[0]).any()\n",
        "places of several examples, as the first one's",
    ),
    Bug(
        "owners/alignment/placements.py",
        "_varies_along_blocked(rule, rule.results[number], places)",
        "_varies_along_blocked(rule, rule.results[0], places)",
        "places of one result as if they were those of another",
    ),
    Bug(
        "owners/alignment/placements.py",
        "    if any(numbers.shape[axis] > 1 for axis in lost):\n        return None\n",
        "",
        "a sum over places of the examples as a constant",
    ),
    Bug(
        "owners/alignment/placements.py",
        'return op.name == "stablehlo.reshape" or any(own.varies for _, own in rows)',
        'return op.name == "stablehlo.reshape" or rows is not None',
        "rows of parameters in another order",
    ),
    Bug(
        "owners/alignment/positions.py",
        "for value in linked(placed.value):",
        "for value in linked(placed.value)[:0]:",
        "weights of the examples that a loop carries, summed behind it",
    ),
    Bug(
        "owners/alignment/positions.py",
        "return any(has_constant_part(search.owners, v) for v in sums)",
        "return False",
        "masks by group that scale what a penalty adds to the groups' sums",
    ),
    Bug(
        "owners/alignment/positions.py",
        "if number in added(search.owners, op) or not sums:",
        "if not sums:",
        "weights of the examples that are added to a sum",
    ),
    Bug(
        "owners/alignment/positions.py",
        'if op.name != "stablehlo.gather" or mlir.enclosing_loops(op):',
        'if op.name != "stablehlo.gather" or op.operands:',
        "rows of a table that examples pick, in the gradient of what they pick from",
    ),
    Bug(
        "owners/alignment/positions.py",
        "return is_uniform(value, PerExample(dim, before, after), size, search.uniform)",
        "return search is not None",
        "masks and weights of the examples as the same for all",
    ),
    Bug(
        "owners/alignment/positions.py",
        "if not trained or keeps_rows(op, placed.number, placed.places)",
        "if op.name",
        "rows of parameters that are moved before they meet the examples",
    ),
    Bug(
        "owners/alignment/positions.py",
        "if is_shared(search.owners.of(value)) and _has_elements(value):",
        "if search.owners.of(value) == search.owners.nobodys(value) and not mlir.shape(value):",
        "weights of the examples that are made of others",
    ),
    Bug(
        "owners/alignment/positions.py",
        "        if not _is_splat(value):\n            for placed",
        "        if not _is_splat(value) and mlir.defining_operation(value) is None:\n"
        "            for placed",
        "masks of the examples that are made before they meet them",
    ),
    Bug(
        "owners/alignment/step_positions.py",
        "elif value != carry and varies(owners.varying, loop, value):",
        "elif value != carry and varies(owners.varying, loop, value) and value in body.arguments:",
        "weights of the steps, computed in the loop, as a constant of all",
    ),
    Bug(
        "owners/alignment/step_positions.py",
        "return alike and not any(",
        "return False and not any(",
        "weights of the steps of the backward pass of a linear head",
    ),
    Bug(
        "owners/alignment/step_positions.py",
        "alike = steps is None or not",
        "alike = steps is not None and not",
        "what a loop of unknown length adds for each example's position",
    ),
    Bug(
        "owners/alignment/step_positions.py",
        "return any(varies(owners.varying, loop, v) for loop in loops for v in shared)",
        "return False",
        "weights of the steps that are added beside terms of the examples",
    ),
]
