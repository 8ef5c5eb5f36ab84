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
        "one = over(owners, [axis])\n            owners = owners",
        "one = owners.take([0], axis)\n            owners = owners",
        "what the first of several owns, as if all were its",
    ),
    Bug(
        "owners/labelling/digits.py",
        "    return compact(few if few.covers(size) else labels)",
        "    return compact(few)",
        "constants in some examples' rows, as theirs",
    ),
    Bug(
        "owners/labelling/moves.py",
        "return first if all(same(own, first) for own in others) else None",
        "return joined([first, *others])",
        "constants that are stacked with some examples' rows, as theirs",
    ),
    Bug(
        "owners/labelling/moves.py",
        "        holes = bool((places < 0).any()) and bool(resized.digits[dim])",
        "        holes = False",
        "what is padded by constants, as the examples'",
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
        "certain = all(spot is not None for spot in spots)",
        "certain = True",
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
