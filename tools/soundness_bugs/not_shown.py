"""Bugs in what is made of a module that does not show all: rows that met the examples, padding's
terms, parameters that are no argument.
"""

from tools.soundness_bugs.bug import Bug

NOT_SHOWN = [
    Bug(
        "rewriting/undivided.py",
        "    if not (followed or shows_all(owners, block, roles.gradients)):",
        "    if False:",
        "rows that met the examples in what a dump lacks",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    returned = [value for number, value in outputs if number not in gradients]",
        "    returned = [value for number, value in outputs]",
        "such rows where a gradient is taken for the loss",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    return is_number and value in owners.trained and is_sum(owners.of(value))",
        "    return value in owners.trained and mlir.is_inexact(value)",
        "such rows where what nothing uses is taken for the loss",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    if behind.isdisjoint(asked.parameters):",
        "    if False:",
        "such rows of groups",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    if terms and _are_weighted(weighted, owners.size):",
        "    if False:",
        "such terms, one by one",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    ways = (_sums_rows, _puts_rows, _is_looped)",
        "    ways = (_puts_rows, _is_looped)",
        "such rows times a parameter",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    ways = (_sums_rows, _puts_rows, _is_looped)",
        "    ways = (_sums_rows, _is_looped)",
        "such rows among a parameter's",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    ways = (_sums_rows, _puts_rows, _is_looped)",
        "    ways = (_sums_rows, _puts_rows)",
        "such rows by a loop's steps",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "for v, alike in asked.items() if given[mlir.shape(v)] <= len(alike)}",
        "for v, alike in asked.items()}",
        "such rows of an argument",
    ),
    Bug(
        "owners/alignment/rows_of_matrices.py",
        "    return [d for d, column in pairs if np.array_equal(column, np.arange(shape[d]))]",
        "    return [d for d, column in pairs if len(column) == shape[d]]",
        "such rows of a parameter, looked up in any order",
    ),
    Bug(
        "owners/alignment/makings.py",
        "    return op.name in MADE_FROM or is_table(op)",
        "    return op.name in MADE_FROM",
        "such rows of a constant",
    ),
    Bug(
        "owners/alignment/makings.py",
        '    elif op.name == "stablehlo.dot_general":',
        "    elif False:",
        "such rows that are contracted",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "        return any(parameters[v] for v in weights) and (",
        "        return bool(weights) and (",
        "such rows of a parameter that no example reaches",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "size != self.owners.size or all(is_counted(v, parameters) for v in others)",
        "True",
        "such rows beside those of weights, as many as there are examples",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "    for value in (outputs[number] for number in gradients):",
        "    for value in outputs:",
        "such rows of an argument of which something else has the shape",
    ),
    Bug(
        "owners/alignment/rows_of_matrices.py",
        "        return [each[dim] for each in (matrix, *others) if dim < len(each)]",
        "        batch = 0",
        "a matrix for each example, as rows of one",
    ),
    Bug(
        "owners/alignment/rows_of_matrices.py",
        "*(own if dim == _across(op, batch) else [])]",
        "*own]",
        "right-hand sides of examples, as rows of a matrix",
    ),
    Bug(
        "owners/alignment/makings.py",
        "    return any(v in parameters for v, *_ in behind)",
        "    return True",
        "rows of single numbers, as one number",
    ),
    Bug(
        "owners/alignment/makings.py",
        "    return [each for each in differing if not _goes_on(each, known)]",
        "    return [each for each in differing if not rows_from(*each)]",
        "numbers that are put among others, as nothing",
    ),
    Bug(
        "owners/alignment/makings.py",
        '    elif op.name == "stablehlo.convolution":',
        "    elif False:",
        "such rows that are convolved",
    ),
    Bug(
        "owners/alignment/unseen_rows.py",
        "        weights = [v for v in parameters if v in behind and size in mlir.shape(v)]",
        "        weights = [v for v in parameters if v in behind]",
        "such rows along which a parameter lies several times",
    ),
    Bug(
        "owners/alignment/padded_rows.py",
        "        return loop.trips if loop else owners.size",
        "        return 1",
        "terms of padding that a loop adds",
    ),
    Bug(
        "owners/alignment/padded_rows.py",
        "        if is_uniform(*each, known) or has_rows(each, owners.trained, known):",
        "        if has_rows(each, owners.trained, known):",
        "terms of padding",
    ),
    Bug(
        "dataflow/hidden_parameters.py",
        "missing = used.intersection(asked - Counter(_shapes_of_floats(block.arguments, batch)))",
        "missing = set[tuple[int, ...]]()",
        "examples that meet through parameters that are no argument of floats",
    ),
    Bug(
        "dataflow/hidden_parameters.py",
        "    found = set[Value](others if missing else ())",
        "    found = set[Value]()",
        "examples that meet through parameters made of integers",
    ),
    Bug(
        "dataflow/hidden_parameters.py",
        "    return is_one and mlir.shape(op.results[0]) in missing",
        "    return False",
        "examples that meet through parameters of one number",
    ),
    Bug(
        "dataflow/hidden_parameters.py",
        "    if op.name in MADE_FROM or is_table(op):",
        "    if is_table(op):",
        "examples that meet through parameters that are drawn or counted",
    ),
    Bug(
        "dataflow/hidden_parameters.py",
        "        if alike or (missing and len(op.results) and _may_hold(op, missing)):",
        "        if missing and len(op.results) and _may_hold(op, missing):",
        "examples that meet through a matrix beside an argument of its shape",
    ),
]
