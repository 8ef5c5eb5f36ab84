"""Bugs in what tells rows apart by ids, as the program runs."""

from tools.soundness_bugs.bug import Bug

FOLDER = "owners/following/"

FOLLOWING = [
    Bug(
        FOLDER + "follow.py",
        "if meeting.varying & meeting.rule.blocked:",
        "if not meeting.varying:",
        "rows that are cumulated, as each its own",
    ),
    Bug(
        FOLDER + "term_meetings.py",
        "apart = all(x.varying != met.varying for x in laid)",
        "apart = False",
        "all pairs of rows",
    ),
    Bug(
        FOLDER + "follow.py",
        "if not meeting.varying and _adds_constant(op, classes, labels):",
        "if False:",
        "decay added to one row's term, as that example's",
    ),
    Bug(
        FOLDER + "follow.py",
        "if data and not all(is_uniform(value, place, shape[place.dim]) for place in places):",
        "if data and not places:",
        "data of the batch that each row meets at a place of its own",
    ),
    Bug(
        FOLDER + "plain_terms.py",
        "return short and plain and not behind.isdisjoint(owners.trained)",
        "return short and plain",
        "a number of rows, as a term of all examples",
    ),
    Bug(
        FOLDER + "plain_terms.py",
        "short = all(rows.isdisjoint(mlir.shape(v)) for v in behind)",
        "short = rows is not None",
        "weights that rows have, as a term of all examples",
    ),
    Bug(
        FOLDER + "terms.py",
        "return flagged(self.size, one, clash) | flagged(self.size, other, clash)",
        "return flagged(self.size, one, clash)",
        "one of two examples that met",
    ),
    Bug(
        FOLDER + "term_landings.py",
        "return flagged(size, x, several) | flagged(size, y, found > 0)",
        "return flagged(size, x, several)",
        "rows of several examples that land together",
    ),
    Bug(
        FOLDER + "term_lookups.py",
        "chooser = None if labels[0] is not None else outside(following, flags)",
        "chooser = outside(following, flags)",
        "a choice that another example makes",
    ),
    Bug(
        FOLDER + "joined_rows.py",
        '        following.within(op.results[0], ("within", value, which, term), term, fixed)\n',
        "        assert term\n",
        "rows that a loop carries from one example to another",
    ),
    Bug(
        FOLDER + "pair_weights.py",
        "(other != kept) & ((kept >= 0) | stays)",
        "(other != kept) & (kept >= 0)",
        "a row of nobody that sees all",
    ),
    Bug(
        FOLDER + "pair_weights.py",
        "bad = is_others & reduce(jnp.logical_or, wild, counts)",
        "bad = is_others & counts",
        "weights of zero on what is not finite",
    ),
    Bug(
        FOLDER + "pair_weights.py",
        "bad = is_others & ~(x <= own)",
        "bad = is_others & (x != x)",
        "a maximum that another example has",
    ),
    Bug(
        FOLDER + "pairs.py",
        "if varying & rule.blocked or not lost <= rule.reduced:",
        "if not lost <= rule.reduced:",
        "scores that are sorted",
    ),
    Bug(
        "ir/mlir.py",
        'return parent is not None and parent.operation.name != "func.func"',
        "return parent is None",
        "weights that are asked for where they are not computed",
    ),
    Bug(
        "rewriting/emitted_weights.py",
        "flags = list(arrays[len(originals) :])",
        "flags = list[jax.Array]()",
        "weights that a loop computes",
    ),
    Bug(
        "rewriting/emitted_terms.py",
        "if not behind.isdisjoint(_made_with(result))",
        "if result in behind",
        "what is met in a loop whose first result nothing uses",
    ),
    Bug(
        "terms/rows.py",
        "unsaid = (met | _is_stray(ticket, known)).astype(jnp.int32)",
        "unsaid = met.astype(jnp.int32)",
        "terms of rows that nobody owns",
    ),
    Bug(
        "terms/rows.py",
        "return tuple(result + unsaid.astype(result.dtype) for result in function(*shown))",
        "return tuple(function(*shown))",
        "shares of examples that met others",
    ),
]
