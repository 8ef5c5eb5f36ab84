"""Bugs in what loops and branches do to owners."""

from tools.soundness_bugs.bug import Bug

CONTROL_FLOW = [
    Bug(
        "owners/loops.py",
        "settled = all(map(_is_same, after, carries)) and reached == trained",
        "settled = len(after) == len(carries)",
        "a loop's state by its first step alone",
    ),
    Bug(
        "owners/loops.py",
        "settled = all(map(_is_same, after, carries)) and reached == trained",
        "settled = all(map(_is_same, after, carries))",
        "a loop's state that parameters reach in its second step, as data",
    ),
    Bug(
        "owners/loops.py",
        "all_steps = over(known.labels.owners, [owners.steps]).squeeze(owners.steps)",
        "all_steps = known.labels.owners.take(0, owners.steps)",
        "what the steps make of other examples, as the first step's",
    ),
    Bug(
        "owners/loops.py",
        "    return replace(known, offset=known.offset or known.filled)",
        "    return replace(known, offset=False)",
        "a constant of one example after the other's, in one place of a loop",
    ),
    Bug(
        "owners/loops.py",
        "        case (_, Mixed()):\n            return other\n",
        "        case (_, Mixed()):\n            return one\n",
        "what a second branch or step mixes",
    ),
    Bug(
        "owners/loops.py",
        "return Summed(site, data or held(c for c in (one, other) if isinstance(c, Owned)))",
        "return Summed(site, data)",
        "a branch's data of the batch beside the other's sum",
    ),
    Bug(
        "owners/loops.py",
        "return Summed(site, data or more)",
        "return Summed(site, data)",
        "data of the batch in the second branch's sum",
    ),
    Bug(
        "owners/loops.py",
        "if data_in(both) and one.is_shared != other.is_shared:",
        "if both.data and one.is_shared and other.is_shared and not both.data:",
        "data of the batch or an example's value, by a branch",
    ),
    Bug(
        "owners/loops.py",
        "labels = joined([one.labels, other.labels])\n    except",
        "labels = joined([one.labels, one.labels])\n    except",
        "examples that lie elsewhere in another branch or step",
    ),
    Bug(
        "owners/loops.py",
        "both = Owned(one.labels, held([one, other]), offset",
        "both = Owned(one.labels, one.data, offset",
        "data of the batch in a second branch or step",
    ),
    Bug(
        "owners/loops.py",
        "offset = one.offset or other.offset or beside",
        "offset = one.offset or beside",
        "a constant that a second branch adds to some examples",
    ),
    Bug(
        "owners/loops.py",
        "return _are_alike(one, other) and same(one.labels, other.labels)",
        "return _are_alike(one, other)",
        "a state that is another example's from its second step on",
    ),
    Bug(
        "owners/loops.py",
        "return _are_alike(one, other) and same(one.labels, other.labels)",
        "return same(one.labels, other.labels)",
        "a state that holds data from its second step on",
    ),
    Bug(
        "owners/loops.py",
        "if was or not alone)",
        "if was)",
        "what the examples of trained values decide together, as data",
    ),
    Bug(
        "owners/loops.py",
        "alone = is_shared(predicate)",
        "alone = isinstance(predicate, Owned)",
        "what an example's loop makes of constants, as nobody's",
    ),
    Bug(
        "owners/loops.py",
        "return [carries[i] if i in frozen else c for i, c in enumerate(judged)]",
        "return [carries[i] if frozen else c for i, c in enumerate(judged)]",
        "what goes on changing beside what stays while others are not done",
    ),
    Bug(
        "owners/loops.py",
        "return Owned(known.labels, held([known, decider]))",
        "return known",
        "what data of the batch decides, as no data",
    ),
    Bug(
        "owners/loops.py",
        "if data and any(varies(owners.varying, loop.op, predicate) for loop in parts):",
        "if data and not known:",
        "a branch for each example that earlier examples' data decides",
    ),
    Bug(
        "owners/loops.py",
        "isinstance(known, Owned) and not known.data:",
        "isinstance(known, Owned):",
        "data of the batch that an example's branch returns, as its own",
    ),
    Bug(
        "owners/loops.py",
        "labels = joined([known.labels, chooser])",
        "labels = known.labels",
        "what an example chooses among others' values or constants",
    ),
    Bug(
        "owners/branches.py",
        "if not owners.trained.isdisjoint([op.operands[0], *values]):",
        "if not owners.trained.isdisjoint(values):",
        "what a branch on trained values returns, as data",
    ),
    Bug(
        "owners/branches.py",
        "size > 1 and varies(owners.varying, loop, op.operands[0])",
        "size > 1 and not varies(owners.varying, loop, op.operands[0])",
        "constants that the number of a step chooses, as its example's",
    ),
    Bug(
        "owners/branches.py",
        "for value in values[1:]:",
        "for value in values[:1]:",
        "what all branches but the first return",
    ),
    Bug(
        "owners/branches.py",
        "if is_shared(predicate):",
        "if is_shared(predicate) or is_shared(known):",
        "constants that an example chooses between, as nobody's",
    ),
    Bug(
        "owners/loops.py",
        "if question is not None and frozen and used <= frozen:",
        "if question is not None and frozen:",
        "how long the examples go on, as no data of the batch",
    ),
    Bug(
        "owners/classes.py",
        "return all(np.unique(row).size == count for row in rows)",
        "return count > 0 and len(rows) > 0",
        "flags for parts of an example, as the example's",
    ),
]
