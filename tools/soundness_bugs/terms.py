"""Bugs in what an example's share of an op is, and in what is known of it behind the sites."""

from tools.soundness_bugs.bug import Bug

READING, KEPT = "terms/epilogue.py", "terms/kept_examples.py"
SIDES = "strategies/kronecker/sides.py"
SINGLE = "strategies/ghost/single_gradients.py"
TERMS = [
    Bug(
        READING,
        "Does.PASSES if _keeps_parts(op) else None",
        "Does.PASSES",
        "the real part of a complex gradient taken for all of it",
    ),
    Bug(
        READING,
        "Does.PASSES if sums and zero else None",
        "Does.PASSES if sums else None",
        "what is added to a gradient taken for nothing",
    ),
    Bug(
        READING,
        "only_moves(links) and all(link.keeps_elements for link in links)",
        "only_moves(links)",
        "the norm of what a loop stacks taken for that of a part of it",
    ),
    Bug(
        "measures/measures.py",
        "self.complex_factorable if mlir.is_complex(gradient) else self.factorable",
        "self.factorable",
        "a function that factors for real numbers alone, of complex gradients",
    ),
    Bug(
        KEPT,
        "replace(x, is_weighted=i == linear[0]) if i in own",
        "x if i in own",
        "the row that a step's example looks up, B times",
    ),
    Bug(
        KEPT,
        "    return jnp.argmax(jnp.asarray(counter.numbers, number.dtype) == number)\n",
        "    return number\n",
        "a loop's counter taken for the number of its step",
    ),
    Bug(
        SIDES,
        "if scope_of(path.site.op) == HOISTED_STACK:",
        "if False:",
        "layers' biases, stacked by a loop, taken for the rows of a table",
    ),
    Bug(
        SIDES,
        "len(_wide(path, own)) < 2 and tuple(order)",
        "tuple(order)",
        "positions of stacked layers taken for elements of a bias",
    ),
    Bug(
        "strategies/choice.py",
        "isinstance(measure, OfPositions) and task.made_before is not None",
        "False",
        "Kronecker factors of gradients that are made one by one, as of a table",
    ),
    Bug(
        SINGLE,
        "return [v for v in ties(value) if _is_owned(axes, v)]",
        "return []",
        "Kronecker factors of gradients that a loop makes one by one, as of a table",
    ),
    Bug(
        SINGLE,
        "return scaled if len(scaled) == 1 else []",
        "return []",
        "Kronecker factors of gradients that are made and clipped one by one, as of a table",
    ),
]
