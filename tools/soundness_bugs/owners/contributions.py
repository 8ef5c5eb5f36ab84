"""Bugs in contributions, where all that is mixed counts as a constant of the batch."""

from tools.soundness_bugs.bug import Bug

CONTRIBUTIONS = [
    Bug(
        "owners/sums.py",
        "alone = owners.contributions is None and _is_from_earlier_steps(owners, op, classes)",
        "alone = _is_from_earlier_steps(owners, op, classes)",
        "rows beside a sum of earlier steps, as terms of that sum",
    ),
    Bug(
        "owners/sums.py",
        "if (trained and owners.contributions is None) or not (",
        "if trained or not (",
        "one example's row beside a sum of earlier steps, as a term of that sum",
    ),
    Bug(
        "owners/verdicts.py",
        "return rows if owners.contributions else is_sum(known)",
        "return not owners.contributions and is_sum(known)",
        "a value that is an example's row here and a sum there",
    ),
    Bug(
        "owners/analysis.py",
        "settle(owners, notes, op, found)\n",
        "notes.unplaced.clear()\n",
        "rows that are summed, whosever they are",
    ),
    Bug(
        "owners/analysis.py",
        "elif notes and settle_flow(notes, op):",
        "elif notes and not op.results:",
        "rows that are summed in a loop or branch",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "if op.name in MIXING or _summed_dims(op, classes, i)]",
        "if op.name in MIXING]",
        "a sum over rows that may be the examples'",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "if op.name in MIXING or _summed_dims(op, classes, i)]",
        "if _summed_dims(op, classes, i)]",
        "windows and sorting over rows that may be the examples'",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "any(is_sum(classes[i]) or not _is_alike(op, i) for i in summed)",
        "any(is_sum(classes[i]) for i in summed)",
        "a sum over rows that differ, as over equal ones",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "any(is_sum(classes[i]) or not _is_alike(op, i) for i in summed)",
        "not all(_is_alike(op, i) for i in summed)",
        "a sum over rows that are the same sum of the examples",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "dims = dims.union(*(_kept(op, rule, i, own, number) for i, own in loose.items()))",
        "dims = frozenset(dims)",
        "rows that an op passes on",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "if scattered or _leaves_place(op, classes, owners.of(result)):",
        "if _leaves_place(op, classes, owners.of(result)):",
        "rows of examples that meet, and lie where nobody knows",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "if scattered or _leaves_place(op, classes, owners.of(result)):",
        "if scattered:",
        "rows by a labelling that an op does not keep",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "dims = _made_rows(owners, op, classes, number)",
        "dims = frozenset[int]()",
        "rows that a sum is spread over",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "return frozenset(d for d in dims if met.isdisjoint(rule.operands[number][d]))",
        "return frozenset() if met else dims",
        "rows along one dimension, where the examples lie along another",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "if places_of(owners.of(gradient)) and owners.data:",
        "if places_of(owners.of(gradient)) and not owners.data:",
        "a gradient with rows of its own, where the examples meet",
    ),
    Bug(
        "owners/contributions/lost_rows.py",
        "return all(is_uniform(value, PerExample(d), mlir.shape(value)[d]) for d in dims)",
        "return len(list(dims)) > 0",
        "a sum over rows of unlike examples, as over equal ones",
    ),
    Bug(
        "owners/contributions/places.py",
        "return Owned(places[0]) if len(places) == 1 else Crossed(places)",
        "return Owned(places[0])",
        "what both of two examples compute, as the first one's",
    ),
    Bug(
        "owners/contributions/placed_rows.py",
        "everyone == set(placed.places.owners.ravel().tolist())\n",
        "placed.places.varies\n",
        "rows that run along with some of the examples",
    ),
    Bug(
        "owners/contributions/placed_rows.py",
        "return not any(True for _ in if_uneven(search, value, labels))",
        "return search is not None",
        "rows that differ among the examples, as even shares",
    ),
    Bug(
        "owners/contributions/placed_rows.py",
        "if len(labels) == 1}",
        "if labels}",
        "constants that meet the examples in two orders",
    ),
]
