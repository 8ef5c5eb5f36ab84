"""Which collectives a compiled module has, in loops and outside them, and how much they send."""

import re
from collections import Counter

KINDS = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "reduce-scatter",
)
COLLECTIVE = re.compile(rf"= .*?\b({'|'.join(KINDS)})(?:-start)?\(")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
CALLED = re.compile(
    r"\b(body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
)
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


def collectives(text):
    """How often each kind occurs in compiled HLO, as "all-reduce", or "all-reduce in a loop"."""
    lines, entry = _computations(text)
    found = Counter()

    def visit(name, looped):
        for line in lines[name]:
            if kind := COLLECTIVE.search(line):
                found[kind[1] + (" in a loop" if looped else "")] += 1
            for how, called in CALLED.findall(line):
                visit(called, looped or how in ("body", "condition"))
            for group in BRANCHES.findall(line):
                for called in group.split(","):
                    visit(called.strip().lstrip("%"), looped)

    visit(entry, False)
    return dict(found)


def _computations(text):
    """The lines of each computation by its name, and the entry's name."""
    lines, entry, current = {}, None, None
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            current = head[2]
            lines[current] = []
            entry = current if head[1] else entry
        elif current is not None:
            lines[current].append(line)
    return lines, entry


def total(found, kind):
    """How often a kind occurs, in loops and outside them."""
    return found.get(kind, 0) + found.get(f"{kind} in a loop", 0)


def excess(found, plain, statistics, in_layers=False):
    """What a rewritten module has too many of, beside the plain gradient's: {} where all is well.

    One all-reduce more for each statistic is allowed; in a loop only where the gradient itself is
    reduced in the loop over the layers.
    """
    allowed = {kind: plain.get(kind, 0) for kind in found}
    allowed["all-reduce"] = plain.get("all-reduce", 0) + statistics
    if in_layers:
        allowed["all-reduce in a loop"] = plain.get("all-reduce in a loop", 0) + statistics
    over = {kind: count for kind, count in found.items() if count > allowed[kind]}
    if total(found, "all-reduce") > total(plain, "all-reduce") + statistics:
        over["all-reduce in all"] = total(found, "all-reduce")
    return over
