"""Bugs in the bounds of integers under conditions, of their bits, and of their sums."""

from tools.soundness_bugs.bug import Bug

BOUNDS = [
    Bug(
        "owners/labelling/conditions.py",
        "direction if holds else OPPOSITE[direction]",
        "direction",
        "a comparison that does not hold, as one that does",
    ),
    Bug(
        "owners/labelling/conditions.py",
        'if hold == (op.name == "stablehlo.and"):',
        "if True:",
        "one of two conditions, as both",
    ),
    Bug(
        "owners/labelling/conditions.py",
        "high = np.where(high == b.high, high - 1, high)",
        "high = np.where(high == b.high, high - 2, high)",
        "what is less than a number, as less by two",
    ),
    Bug(
        "owners/labelling/conditions.py",
        "high = np.where(b.known & (high == b.high), high - 1, high)",
        "high = np.where(high == b.high, high - 1, high)",
        "what is unlike a number between bounds, as unlike the greatest of them",
    ),
    Bug(
        "owners/labelling/conditions.py",
        "np.where(inside.high <= 0, np.minimum(given.high, inside.high), given.high)",
        "np.minimum(given.high, inside.high)",
        "what has a sign, as no greater than that",
    ),
    Bug(
        "owners/labelling/conditions.py",
        "alone = [first & ~second, second & ~first]",
        "alone = [first, second]",
        "the first of two cases that may be, as the one that is",
    ),
    Bug(
        "owners/labelling/conditions.py",
        'bool(numbers.all()) == (direction == "EQ")',
        "bool(numbers.all())",
        "a truth unlike another, as like it",
    ),
    Bug(
        "owners/labelling/conditions.py",
        "truth.high if holds else ~truth.low",
        "truth.low if holds else ~truth.high",
        "a case that may be, as one that is not",
    ),
    Bug(
        "owners/labelling/interval_ops.py",
        'keeps_order = (x.low >= 0) | (op.name == "stablehlo.shift_right_arithmetic")',
        "keeps_order = np.asarray(True)",
        "a negative number whose sign is shifted away, as in order",
    ),
    Bug(
        "owners/labelling/integer_ops.py",
        "if jnp.iinfo(x.dtype).min == 0:\n        raise Undefined",
        "",
        "an unsigned number that is filled with its first bit, as with zeros",
    ),
    Bug(
        "owners/labelling/interval_ops.py",
        "np.where(np.logical_or(*positive), 0, least), np.minimum(*tops)",
        "np.zeros_like(tops[0]), np.minimum(*tops)",
        "the bits of two numbers that may be negative, as of one that is not",
    ),
    Bug(
        "owners/labelling/interval_ops.py",
        "top = _all_bits_up_to(np.maximum(a.high, b.high))",
        "top = np.maximum(a.high, b.high)",
        "the bits of both, as no more than one has",
    ),
    Bug(
        "owners/labelling/combined_numbers.py",
        "return _added(Bounds(np.minimum(low, 0), np.maximum(high, 0)), x, start, count)",
        "return _added(Bounds(low, high), x, start, count)",
        "a window that lies in the padding, as one that is full",
    ),
    Bug(
        "owners/labelling/combined_numbers.py",
        "if start.low.any() or start.high.any() or not fits:",
        "if not fits:",
        "numbers added to another, as their sum",
    ),
    Bug(
        "owners/labelling/combined_numbers.py",
        "if (sums.low < least).any() or (sums.high > greatest).any():",
        "if (sums.low < least).any():",
        "a sum that wraps, as between bounds",
    ),
]
