"""Bugs in sums and constants of the batch, and in verdicts."""

from tools.soundness_bugs.bug import Bug

CONSTANTS = [
    Bug(
        "owners/sums.py",
        "return linearity.is_linear(op, own) or multiplies_elements(op)",
        "return multiplies_elements(op)",
        "a product of sums, broadcast, times another sum",
    ),
    Bug(
        "owners/sums.py",
        "if scales and (owners.is_trained(op, i) or not trained):",
        "if scales and owners.is_trained(op, i):",
        "a product of two sums of data times a third",
    ),
    Bug(
        "owners/sums.py",
        "if linearity.is_linear(op, summed):\n        return _one_sum",
        "if summed:\n        return _one_sum",
        "whatever is made of sums as a sum",
    ),
    Bug(
        "owners/sums.py",
        "if refused := refused_as_uneven(owners, op, classes):",
        "if refused := None:",
        "some examples' values with a constant, added to a sum",
    ),
    Bug(
        "owners/sums.py",
        "data = added_data(op, classes, terms)\n    other",
        "data = None\n    other",
        "data of the batch added to a sum, as part of each example's gradient",
    ),
    Bug(
        "owners/sums.py",
        "data = frozenset(i for i in summed if not owners.is_trained(op, i))\n    many",
        "data = summed\n    many",
        "a sum that parameters reach as a constant beside the examples",
    ),
    Bug(
        "owners/sums.py",
        "if many and not _differs(owners, op, classes, i))",
        "if many)",
        "sums of data of which each example meets another",
    ),
    Bug(
        "owners/sums.py",
        "return all(_joins_a_sum(c) for c in again(owners, op, bare))",
        "return len(bare) > 0",
        "a reduction within each example that starts from a sum over all",
    ),
    Bug(
        "owners/sums.py",
        "if not onto or op.name not in linearity.SUMMING_BODIES or not _adds(op):",
        "if not onto or op.name not in linearity.SUMMING_BODIES:",
        "the larger of a sum and an example's values",
    ),
    Bug(
        "owners/sums.py",
        'if op.name == "stablehlo.divide" and 1 in data:',
        'if op.name == "stablehlo.divide" and 1 in summed:',
        "a sum of trained values as a divisor",
    ),
    Bug(
        "owners/sums.py",
        "        if data != summed:\n",
        "        if len(data) > len(summed):\n",
        "sums of trained values as constants",
    ),
    Bug(
        "owners/sums.py",
        "if any(n > 1 and varies(owners.varying, loop.op, value) for loop, n in steps):",
        "if all(n > 1 and varies(owners.varying, loop.op, value) for loop, n in ()) and not known:",
        "sums of data that differ from step to step",
    ),
    Bug(
        "owners/sums.py",
        "product = product_of(op, summed) if len(data) in (0, len(summed)) else None",
        "product = None",
        "a product of sums as an ordinary constant",
    ),
    Bug(
        "owners/products/places_of_sums.py",
        "if not rows or site.name in ELEMENTWISE | PICKING:\n        return rows",
        "if not rows or site.name in ELEMENTWISE | PICKING:\n        return False",
        "data that differs by place times rows of examples that were added to others'",
    ),
    Bug(
        "owners/products/places_of_sums.py",
        "return found is None or not found.adds_up(0) or _lays_out(site, classes, found)",
        "return found is None or not found.adds_up(0)",
        "data that differs by place times rows that a matrix adds up",
    ),
    Bug(
        "owners/products/products_of_sums.py",
        "if by_operand or multiplies_elements(op):",
        "if by_operand:",
        "a product of all elements of a sum",
    ),
    Bug(
        "owners/products/products_of_sums.py",
        "by_operand = len(summed) > 1 and",
        "by_operand = len(summed) > 2 and",
        "a product of two sums as an ordinary constant",
    ),
    Bug(
        "owners/constants.py",
        "added = {i for i in range(len(classes)) if linearity.is_linear(op, terms | {i})}",
        "added = set[int]()",
        "data of the batch that is added to a sum of examples",
    ),
    Bug(
        "owners/constants.py",
        "chosen if chosen and not meets_alike(op.operands[0], 0, found) else None",
        "None",
        "data of the batch that a mask of nobody chooses for some examples",
    ),
    Bug(
        "owners/constants.py",
        "chosen if chosen and _differs_at(owners, op.operands[0], steps) else None",
        "None",
        "data of the batch that is chosen at the steps of some examples",
    ),
    Bug(
        "owners/constants.py",
        "if isinstance(known, Mixed) and value not in owners.trained:",
        "if isinstance(known, Mixed):",
        "whatever is mixed as a constant of the batch",
    ),
    Bug(
        "owners/analysis.py",
        "told = is_data or known.data in owners.positional.values()",
        "told = known.data in owners.positional.values()",
        "data of the batch that lies beside the examples as places",
    ),
    Bug(
        "owners/constants.py",
        "return all(is_uniform(value, along, size) for along, size in digits)",
        "return not digits or any(is_uniform(value, along, size) for along, size in digits)",
        "data that is the same along one of two dimensions of the examples",
    ),
    Bug(
        "owners/constants.py",
        "            before *= size\n",
        "",
        "data that is the same within each group of examples",
    ),
    Bug(
        "owners/constants.py",
        "return any(varies(owners.varying, loop.op, value) for loop in loops)",
        "return len(loops) > 1 and all(varies(owners.varying, loop.op, value) for loop in loops)",
        "data that differs from step to step, as the same at all",
    ),
    Bug(
        "owners/constants.py",
        "dims = range(len(shape)) if is_index else _numbered_dims(owners, op, i)",
        "dims = _numbered_dims(owners, op, i)",
        "examples that are taken in an order that data tells",
    ),
    Bug(
        "owners/constants.py",
        "        if _differs_at(owners, update, steps):\n            return data\n",
        "",
        "data of each step that is put at a place of its own",
    ),
    Bug(
        "owners/constants.py",
        "return [dim for dim, x in zip(columns, known, strict=True) if x is not None]",
        "return [d for d, x in zip(columns, known, strict=True) if x is not None and x.size < 2]",
        "rows of data that a gather takes for the examples in another order",
    ),
    Bug(
        "owners/constants.py",
        "found[i] = known.instead or replace(owners.nobodys(value), data=reason)",
        "found[i] = known.instead or owners.nobodys(value)",
        "a sum of data that is used as a constant, as no data",
    ),
    Bug(
        "owners/constants.py",
        "key=lambda c: (is_undivided(c), data_in(c) is not None)",
        "key=lambda c: data_in(c) is not None",
        "a product of sums or other data, by a branch, times another sum",
    ),
    Bug(
        "owners/constants.py",
        "key=lambda c: (is_undivided(c), data_in(c) is not None)",
        "key=is_undivided",
        "data of the batch beside a sum over positions, as what belongs to positions",
    ),
    Bug(
        "owners/labelling/labels.py",
        "return len(set(counts.tolist())) == 1",
        "return counts.size > 0",
        "constants of which some examples have more rows than others",
    ),
    Bug(
        "owners/offsets.py",
        "    if any(classes[i].offset for i in own):\n        return True\n",
        "",
        "constants that were added to some examples' values before",
    ),
    Bug(
        "owners/labelling/fillings.py",
        "not _runs_on(op, i) for i in put)",
        "not mlir.enclosing_loops(op) for i in put)",
        "constants that are added to some examples' values in a loop",
    ),
    Bug(
        "owners/labelling/fillings.py",
        "        if op.operands[number] in carries:",
        "        if op.operands[number] not in carries:\n            return True\n        else:",
        "constants beside the terms that a loop adds to its carry",
    ),
    Bug(
        "owners/verdicts.py",
        "if is_uneven(owners, known):",
        "if is_uneven(owners, known) and not known.labels.shape:",
        "a gradient of one example's, with a constant, as all have it",
    ),
    Bug(
        "owners/verdicts.py",
        "reason or apart_reason(owners, block, gradient)",
        "reason",
        "a constant that some examples alone meet, as one of all",
    ),
    Bug(
        "owners/alignment/apart.py",
        "if reason := next(met, None):",
        "if not behind:",
        "data of which each example meets a place of its own, one by one",
    ),
    Bug(
        "owners/verdicts.py",
        "mixing_reason(owners, gradient) or example_rows(owners, block, gradient)",
        "mixing_reason(owners, gradient)",
        "a gradient of a parameter that has a row for each example",
    ),
    Bug(
        "owners/verdicts.py",
        "case Summed(_, data):\n            return data and as_term(data)",
        "case Summed(_, data):\n            return data and None",
        "data of the batch that is added to the examples' terms",
    ),
    Bug(
        "owners/verdicts.py",
        "return as_term(data) if data and not vanishes(output) else None",
        "return None",
        "data of the batch as a gradient",
    ),
    Bug(
        "owners/labelling/fillings.py",
        '"stablehlo.pad": (0, 1)',
        '"stablehlo.pad": (0,)',
        "padding that is not zero, times data of the batch",
    ),
    Bug(
        "owners/labelling/fillings.py",
        '"stablehlo.multiply": (0, 1)',
        '"stablehlo.add": (0, 1)',
        "data of the batch that is added to padding",
    ),
    Bug(
        "owners/labelling/fillings.py",
        "return otherwise or (predicate and chosen)",
        "return predicate and chosen",
        "data of the batch that is chosen for padding",
    ),
]

# Bugs in what counts as held constant, and where.
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
