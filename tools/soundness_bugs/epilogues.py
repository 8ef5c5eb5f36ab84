"""Bugs in what is done to a gradient behind its contraction, and what is known of it from there."""

from tools.soundness_bugs.bug import Bug

READING = "terms/epilogue.py"
EPILOGUES = [
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
]
