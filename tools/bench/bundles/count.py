"""The bundles that a fusion runs, and main memory's bytes it moves, by running its scalars alone.

A bundle takes a cycle but for waiting on memory, so that this is a count of time that owes nothing
to the compiler's `estimated_cycles`. Branches are followed as grid counters and predicates say.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tools.bench.bundles.text import Bundles, Operation

# Bundles behind a branch that still run; bytes in a granule of a copy; bundles after which a
# program counts as stuck.
DELAY, GRANULE, LONGEST = 4, 32, 1 << 33
Number = int | None
BINARY: dict[str, Callable[[int, int], int]] = {
    "sadd": operator.add,
    "ssub": operator.sub,
    "smul": operator.mul,
    "sand": operator.and_,
    "sor": operator.or_,
    "sxor": operator.xor,
    "sshll": lambda x, by: x << by,
    "sshrl": lambda x, by: (x & 0xFFFFFFFF) >> by,
    "sshra": lambda x, by: x >> by,
    "smin": min,
    "smax": max,
    "por": lambda x, y: x | y,
    "pand": lambda x, y: x & y,
    "pxor": lambda x, y: x ^ y,
    "pnand": lambda x, y: 1 - (x & y),
    "pnor": lambda x, y: 1 - (x | y),
}
COMPARED: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}


@dataclass(frozen=True)
class Count:
    """Bundles that run, and bytes that copies between main memory and the chip's own move."""

    bundles: int
    bytes: int


@dataclass
class State:
    """Registers and scalar memory."""

    values: dict[str, Number] = field(default_factory=dict[str, Number])
    moved: int = 0

    def read(self, operand: str) -> Number:
        """A register, a predicate or its opposite, or a number; None where that is not known."""
        text = operand.split("=")[-1].strip()
        if re.fullmatch(r"-?\d+", text):
            return _wrapped(int(text))
        found = self.values.get(text.rsplit("_", 1)[-1])
        return found if not text.startswith("!") or found is None else 1 - found


def count_of(bundles: Bundles) -> Count:
    """What one run of the program takes. Raises ValueError where a branch depends on data."""
    state, address, ran, starts = State(), 0, 0, sorted(bundles.active)
    position = 0
    while position < len(starts):
        at = starts[position]
        ran, address = ran + at - address + 1, at + 1
        target = _run(bundles, state, at)
        position += 1
        if target is not None:
            for slot in range(at + 1, at + 1 + DELAY):
                if slot in bundles.active:
                    _run(bundles, state, slot)
            ran, address = ran + DELAY, target
            position = next((i for i, start in enumerate(starts) if start >= target), len(starts))
        if ran > LONGEST:
            raise ValueError("a program of bundles does not end")
    return Count(ran + bundles.count - address, state.moved)


def _run(bundles: Bundles, state: State, address: int) -> int | None:
    """All operations of a bundle read before any writes; the address branched to, if another."""
    written, target = dict[str, Number](), None
    for each in bundles.active[address]:
        holds = state.read(each.predicate) if each.predicate else 1
        if each.name == "sbr.rel":
            target = _target(bundles, each, holds) or target
        elif each.name.startswith("dma."):
            state.moved += _bytes(each, state, bundles.main) if holds or holds is None else 0
        elif each.name == "sst":
            written[each.operands[0].split("]")[0]] = state.read(each.operands[0].split("]")[-1])
        elif holds is None:
            written[each.result] = None
        elif holds and each.name not in ("sphi", "int_to_ptr.vmem", "int_to_ptr.hbm"):
            written[each.result] = _value(each, state)
    state.values |= written
    return target


def _target(bundles: Bundles, branch: Operation, holds: Number) -> int | None:
    if holds is None:
        raise ValueError(f"a branch depends on data: {branch.text}")
    (region,) = re.findall(r"target = \$region(\d+)", branch.text)
    if holds and region not in bundles.regions:
        raise ValueError(f"a branch leads to bundles that are not there: {branch.text}")
    return bundles.regions[region] if holds else None


def _bytes(copy: Operation, state: State, main: frozenset[str]) -> int:
    """What a copy moves: its operands are where from, how many granules, and where to."""
    source, size, target = copy.operands[:3]
    ends = (
        [source in main, target in main]
        if copy.name == "dma.general"
        else re.findall("hbm", copy.name)
    )
    return (state.read(size) or 0) * GRANULE * sum(map(bool, ends))


def _value(operation: Operation, state: State) -> Number:
    """The number that an operation makes, None if of vectors, of addresses, or not known."""
    kind, *rest = operation.name.split(".")
    if kind == "sld":
        return state.values.get(operation.operands[0].split("]")[0])
    given = [state.read(each) for each in operation.operands]
    if kind == "scalar_select":
        return None if given[0] is None else given[1 if given[0] else 2]
    known = [each for each in given if each is not None]
    if len(known) < len(given) or not known:
        return None
    if kind == "scmp":
        unsigned = [each & 0xFFFFFFFF for each in known] if rest[1] == "u32" else known
        return int(COMPARED[rest[0]](*unsigned))
    if kind in ("smov", "pmov", "pneg"):
        return 1 - known[0] if kind == "pneg" else known[0]
    return _wrapped(BINARY[kind](*known)) if kind in BINARY else None


def _wrapped(number: int) -> int:
    """A signed integer of 32 bits."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
