"""Bugs in labels, and in what moves do to them."""

from tools.soundness_bugs.bug import Bug

LABELLING = [
    Bug(
        "owners/labelling/labels.py",
        "agreed = np.where((b == NONE) | (a == b), a, np.int32(MANY))",
        "agreed = np.where((b == NONE) | (a == b), a, a)",
        "what two examples make as the first one's",
    ),
    Bug(
        "owners/labelling/labels.py",
        "return between(low, owners.max(tuple(axes), keepdims=True))",
        "return between(low, low)",
        "what all examples along an axis make as the first one's",
    ),
    Bug(
        "owners/labelling/labels.py",
        "return bool((self.owners == MANY).any())",
        "return bool((self.owners == MANY).all())",
        "a value of which only some elements have several owners",
    ),
    Bug(
        "owners/labelling/labels.py",
        "return bool((self.owners == NONE).all())",
        "return bool((self.owners == NONE).any())",
        "examples' values that lie beside constants, as nobody's",
    ),
    Bug(
        "owners/labelling/digits.py",
        "            if (rows == rows[:1]).all():\n",
        "            if rows.size:\n",
        "owners that begin to repeat, as if all did",
    ),
    Bug(
        "owners/labelling/digits.py",
        "int(np.gcd.reduce(ends)) if ends.size else 0",
        "int(ends[0]) if ends.size else 0",
        "runs of examples of unequal length, as the first run's",
    ),
    Bug(
        "owners/labelling/digits.py",
        "return full.reshape((*before, outer * inner, *behind))",
        "turned = full.swapaxes(len(before), len(before) + 1)\n"
        "    return turned.reshape((*before, outer * inner, *behind))",
        "rows that are merged, as if by columns",
    ),
    Bug(
        "owners/labelling/digits.py",
        "one = over(owners, [axis])\n            alone",
        "one = owners.take([0], axis)\n            alone",
        "what the first of several owns, as if all were its",
    ),
    Bug(
        "owners/labelling/frames.py",
        "return bool((a == b).all())",
        "return bool((a == b).any())",
        "a state that agrees with the step before in one element",
    ),
    Bug(
        "owners/labelling/frames.py",
        "return frame.result(reduce(join, frame.owners), dims)",
        "return frame.result(reduce(np.maximum, frame.owners), dims)",
        "what two values share as the example's with the greater number",
    ),
    Bug(
        "owners/labelling/frames.py",
        "order = [steps + int(k) for k in np.argsort(targets)]",
        "order = [steps + k for k in range(len(targets))]",
        "an operand whose dimensions lie in another order, as if they did not",
    ),
    Bug(
        "owners/labelling/frames.py",
        "turned = owners.transpose([*range(steps), *kept, *lost])",
        "turned = owners",
        "a result whose dimensions lie in another order, as if they did not",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "return joined([labels, *(spread(x, sizes) for x in operands[1:] if not x.is_nobodys)])",
        "return labels",
        "a slice at a place that an example says, as nobody's",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "    if start is None:\n        one = over(labels.owners, labels.axes(dim))\n"
        "        return taken(Labels(labels.digits, one), dim, np.zeros(size, np.int64))\n"
        "    first = np.clip(start, 0, length - size)\n",
        "    if start is None:\n"
        "        return taken(labels, dim, np.arange(size))\n"
        "    first = np.clip(start, 0, length - size)\n",
        "a slice at a place that is not known, as at the first",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "first = np.clip(start, 0, length - size)\n    return taken",
        "first = np.mod(start, length - size + 1)\n    return taken",
        "slices beyond an end, as if they went on at the other",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "            *(spread(x, shape) for x in operands[2:] if not x.is_nobodys),\n",
        "",
        "an update at a place that an example says",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "return joined([cleared(steps, operands[0], spots, shape, separable=True), new])",
        "return new",
        "what lies beside an update, as nobody's",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "    start = places(owners, index)\n    if start is None:\n        return None\n",
        "    start = places(owners, index)\n    if start is None:\n"
        "        start = np.zeros([1] * owners.steps, np.int64)\n",
        "an update at a place that is not known, as at the first",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "first = np.clip(start, 0, shape[dim] - sizes[dim])",
        "first = np.mod(start, shape[dim] - sizes[dim] + 1)",
        "updates beyond an end, as if they went on at the other",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "return np.asarray(inner + _in_batch(first, windows.batch, windows.rank, owners.steps))",
        "return inner + _in_batch(first, windows.batch, windows.rank, owners.steps)",
        "all but one element that is overwritten, as nobody's",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "return joined([found, *_of_indices(operands[1], windows, shape)])",
        "return found",
        "what is gathered at numbers that examples give, as nobody's",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "            labels = over(labels, source.axes(dim))\n",
        "            labels = labels.take([0], owners.steps + dim)\n",
        "what is gathered at unknown places, as the first row's",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "return np.asarray(inner + _in_batch(first, windows.batch, windows.rank, owners.steps))",
        "return np.asarray(_in_batch(first, windows.batch, windows.rank, owners.steps))",
        "windows that are gathered, as their first rows",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        'first = np.clip(start, 0, length - size) if op.name == "stablehlo.gather" else start',
        "first = np.clip(start, 0, length - size)",
        "what a scatter drops, as put at the edge",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "labels = over(labels, [axis]).squeeze(axis)",
        "labels = labels.take(0, axis)",
        "an index whose second number is another example's",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "new = joined([operands[2], *asked])",
        "new = operands[2]",
        "what is put at a place that another example says, as its own",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "if linearity.overwrites(op) and _whole_windows_fit(owners, op):",
        "if _whole_windows_fit(owners, op):",
        "what an update is added to, as overwritten",
    ),
    Bug(
        "owners/labelling/indexed_moves.py",
        "old = cleared(owners.steps, old, spots, shape, separable=False)",
        "old = cleared(owners.steps, old, spots, shape, separable=True)",
        "elements that are overwritten, as if all of their rows were",
    ),
    Bug(
        "owners/labelling/partly_known.py",
        "x = first if alike.all() else x",
        "x = first if alike.any() else x",
        "an index that is the same at some steps, as at all",
    ),
    Bug(
        "owners/labelling/indices.py",
        "writes and op.operands[0] == body.arguments[number] else None",
        "writes else None",
        "a stack of numbers that is begun anew at each step",
    ),
    Bug(
        "owners/labelling/indices.py",
        "first = int(np.clip(at[step], 0, length - size))",
        "first = int(at[step]) % (length - size + 1)",
        "numbers that are written beyond the end of a stack",
    ),
    Bug(
        "owners/labelling/partly_known.py",
        "reduce(np.logical_and,",
        "reduce(np.logical_or,",
        "an index that one number of two tells, as known",
    ),
    Bug(
        "owners/labelling/partly_known.py",
        "return bool(self.known.all())",
        "return bool(self.known.any())",
        "indices of which some are known, as if all were",
    ),
    Bug(
        "owners/labelling/indices.py",
        "if not inside.known.take([number], axis).all():",
        "if not inside.known.any():",
        "a column of indices that only a run tells, beside one that is known",
    ),
    Bug(
        "owners/labelling/indices.py",
        "_written(begun.known, entries.known, spots, loop.trips)",
        "_written(begun.known, begun.known, spots, loop.trips)",
        "indices that a loop stacks, as known as what the stack starts from",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "return np.fmod(a, b)",
        "return np.mod(a, b)",
        "the remainder of a negative index, as a positive one",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "return (a - _remainder(op, steps, a, b)) // b",
        "return a // b",
        "a negative index that is divided, rounded down",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        '"LE": np.less_equal',
        '"LE": np.less',
        "an index by a comparison, wrong where both sides are equal",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "np.clip(start, 0, x.shape[axis] - size)[..., None]",
        "np.mod(start, x.shape[axis] - size + 1)[..., None]",
        "a number taken beyond the end of a table",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "return np.where(spread(chosen, a, steps), a, b)",
        "return np.where(spread(chosen, a, steps), b, a)",
        "the index that was not selected",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "return np.minimum(np.maximum(x, spread(low, x, steps)), spread(high, x, steps))",
        "return np.maximum(x, spread(low, x, steps))",
        "an index that is clamped from above, as if it were not",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        'return np.flip(x, tuple(steps + d for d in integers(op, "dimensions")))',
        "return np.flip(x, ())",
        "numbers in reverse order, as if they were not",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "        if any(x.dtype == np.bool_ for x in operands):\n            raise Undefined\n",
        "",
        "a sum of truth values, of which compilers make one or the other",
    ),
    Bug(
        "owners/labelling/landing.py",
        "    np.minimum.at(low, tuple(where), lowest)\n"
        "    np.maximum.at(high, tuple(where), values)\n",
        "    low[tuple(where)] = lowest\n    high[tuple(where)] = values\n",
        "of several examples that land on one place, the last",
    ),
    Bug(
        "owners/labelling/landing.py",
        "return between(lowest.min(0, initial=ABOVE_ALL), values.max(0, initial=NONE))",
        "return values.max(0, initial=NONE)",
        "of several examples that may land anywhere, the last",
    ),
    Bug(
        "owners/labelling/landing.py",
        "certain = separable and all(spot is not None for spot in spots)",
        "certain = separable",
        "what lay at places that may not be overwritten",
    ),
    Bug(
        "owners/labelling/landing.py",
        "fixed = all(spot.shape[:steps] == (1,) * steps for spot in known.values())",
        "fixed = len(known) > 0",
        "what lay at places that other steps overwrite",
    ),
    Bug(
        "owners/labelling/moves.py",
        "labels = taken(labels, dim, np.arange(*bound))",
        "labels = taken(labels, dim, bound[0] + np.arange(len(range(*bound))))",
        "every other example, as the first of them",
    ),
    Bug(
        "owners/labelling/moves.py",
        "labels = taken(labels, dim, np.arange(labels.shape[dim])[::-1])",
        "labels = taken(labels, dim, np.arange(labels.shape[dim]))",
        "the examples backwards, as forwards",
    ),
    Bug(
        "owners/labelling/moves.py",
        "return labels if filling.is_nobodys else joined([labels, spread(filling, shape)])",
        "return labels",
        "an example's value that fills places beside others",
    ),
    Bug(
        "owners/labelling/moves.py",
        "behind = np.arange(padded) - low\n",
        "behind = np.arange(padded) - max(low, 0)\n",
        "examples of which padding cuts off the first",
    ),
]
