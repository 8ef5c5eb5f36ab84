"""Bugs in what is shown of conditions: that they hold, and that values are the same."""

from tools.soundness_bugs.bug import Bug

CONDITIONS = [
    Bug(
        "owners/labelling/indexed_moves.py",
        "return all(start is not None and not start.any() for start in starts)",
        "return True",
        "what lies where a window that is dropped would have landed, as nobody's",
    ),
    Bug(
        "owners/until_done.py",
        'all(combined_by(op, "stablehlo.and" if inverted else "stablehlo.or"))',
        'any(combined_by(op, name) == [True] for name in ("stablehlo.or", "stablehlo.and"))',
        "a loop that runs until the first example is done",
    ),
    Bug(
        "owners/until_done.py",
        " and is_splat(initial, inverted)",
        "",
        "a loop that goes on whatever the examples are",
    ),
    Bug(
        "owners/truths.py",
        "kind == np.bool_ or (op.name in COPIES and _holds_both(kind))",
        "_holds_both(kind)",
        "an update where the complement of an integer is not zero",
    ),
    Bug(
        "owners/truths.py",
        "op.name in COPIES and _holds_both(kind)",
        "op.name in COPIES",
        "an update behind an element type without zero",
    ),
    Bug(
        "owners/until_done.py",
        "return is_same_truth or chosen(value, known) == argument",
        "return True",
        "what goes on changing while other examples are not done",
    ),
    Bug(
        "owners/until_done.py",
        "is_same_truth = truth is not None and truth == known.get(argument)",
        "is_same_truth = truth is not None",
        "a flag that each step forgets",
    ),
    Bug(
        "owners/until_done.py",
        "if len(of_examples) == 1 else None",
        "if of_examples else None",
        "a cap on the steps that the examples decide",
    ),
    Bug(
        "owners/until_done.py",
        "facts[predicate] = truth\n",
        "facts[predicate] = not truth\n",
        "an update where the opposite of the condition holds",
    ),
    Bug(
        "owners/until_done.py",
        "return frozen if deciding <= frozen else set()",
        "return frozen",
        "examples that are done and may start again",
    ),
    Bug(
        "owners/same_values.py",
        "return repeats and _said(first) == _said(second)",
        "return repeats",
        "an update under another comparison than the loop's condition",
    ),
    Bug(
        "owners/same_values.py",
        "if first is None or second is None or not is_same_kind",
        "if first is None or second is None:\n        return []\n    if not is_same_kind",
        "an update under the same condition of another value",
    ),
    Bug(
        "owners/same_values.py",
        "pairs += zip(*returned, strict=True)",
        "pass",
        "an update under another reduction than the loop's condition",
    ),
    Bug(
        "owners/same_values.py",
        "pairs = list(zip(first.operands, second.operands, strict=True))",
        "pairs = list(zip(first.operands, second.operands, strict=True))[:1]",
        "an update under the same comparison with another bound",
    ),
    Bug(
        "owners/truths.py",
        "value = op.operands[1 if truth else 2]",
        "value = op.operands[2 if truth else 1]",
        "what an example goes on to when it is done",
    ),
    Bug(
        "owners/truths.py",
        "return None if known[0] is None else not known[0]",
        "return known[0]",
        "what is kept until an example is done, and changed then",
    ),
    Bug(
        "owners/truths.py",
        "return True if True in known else (False if known == [False, False] else None)",
        "return True if True in known else (False if False in known else None)",
        "an update where an example is not done or something else holds",
    ),
    Bug(
        "owners/until_done.py",
        "if has_one_each(owners.of(flag))",
        "if has_owners(owners.of(flag))",
        "a flag for a part of an example, by which all of it is done",
    ),
    Bug(
        "owners/until_done.py",
        "and flag in closure([new], _both)",
        "and flag is not new",
        "a flag that comes back, of an update that was not taken",
    ),
    Bug(
        "owners/until_done.py",
        "and _implies(initial, predicate, first, lambda value: value)",
        "and initial is not predicate",
        "a flag that says no more than the condition from the second step on",
    ),
    Bug(
        "owners/until_done.py",
        "and _implies(new, predicate, following, partial(_of_going_on, owners, {flag: True}))",
        "and new is not predicate",
        "a flag that says no more than the condition at first",
    ),
    Bug(
        "owners/until_done.py",
        "partial(_of_going_on, owners, {flag: True})",
        "partial(_of_going_on, owners, {flag: False})",
        "a flag of the carries before the step",
    ),
    Bug(
        "owners/until_done.py",
        "return any(are_same(predicate, value, arguments, seen) for value in asked)",
        "return bool(asked)",
        "a flag that is another question's",
    ),
    Bug(
        "owners/same_values.py",
        "if one == other and _is_all(dims, one):",
        "if one == other:",
        "a value along one dimension as along another",
    ),
    Bug(
        "owners/same_values.py",
        "if first.name not in ELEMENTWISE or len(kinds) > 1 or shapes != sizes:",
        "if first.name not in ELEMENTWISE or shapes != sizes:",
        "numbers rounded otherwise as the same",
    ),
    Bug(
        "owners/same_values.py",
        "if first.name not in ELEMENTWISE or len(kinds) > 1 or shapes != sizes:",
        "if len(kinds) > 1 or shapes != sizes:",
        "numbers of one dimension as those of another",
    ),
]
