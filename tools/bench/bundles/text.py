"""Final bundles as libtpu writes them for each fusion: addresses, regions, scalar operations.

0x15 LB: > { %s12_s9 = sadd.s32 1, %s11_s8  ;;  %14 = sbr.rel (!%p13_p2) target = $region7 } /*
Start region 3 */
"""

import re
from dataclasses import dataclass

BUNDLE = re.compile(
    r"^ *(0x[0-9a-f]+|0) +(?:\w\w)?: *[> ]*\{(.*?)\}([^{}]*?)(?=^ *0x[0-9a-f]+ |\Z)", re.S | re.M
)
REGION = re.compile(r"Start(?:/End empty)? region (\d+)\b")
OPERATION = re.compile(
    r"(?:(%\S+) = )?([a-z][\w.]*)(?: \[thread:\$\d+\])?(?: +\((!?%\w+)(?:, [^)]*)?\))?,? *(.*)",
    re.S,
)
# What decides where a program goes, and what it moves.
SCALAR = re.compile(r"%[sp]\d+_[sp]\d+ = |sst |sbr\.|dma\.\w+_\w+|dma\.general")


@dataclass(frozen=True)
class Operation:
    """One operation of a bundle: what it writes, its name, its predicate and its operands."""

    result: str
    name: str
    predicate: str
    operands: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Bundles:
    """A fusion's program: how many bundles, the scalar ones by address, and its regions' starts.

    `main`: the names of pointers to main memory.
    """

    count: int
    active: dict[int, tuple[Operation, ...]]
    regions: dict[str, int]
    main: frozenset[str]


def read_bundles(text: str) -> Bundles:
    """The bundles of one `*-final_bundles.txt`.

    >>> first = "    0   :  { %s1_s0 = smov 3 } /* Start region 2 */\\n"
    >>> read = read_bundles(first + "  0x1 LB: > { %v = vadd %a, %b }\\n")
    >>> read.count, read.active[0][0].operands, read.regions
    (2, ('3',), {'2': 0})
    """
    active, regions, last = dict[int, tuple[Operation, ...]](), dict[str, int](), -1
    for address, body, comment in BUNDLE.findall(text):
        last = int(address, 16)
        regions |= dict.fromkeys(REGION.findall(comment), last)
        parts = re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(";;")
        found = tuple(_operation(part.strip()) for part in parts if SCALAR.search(part))
        if found:
            active[last] = found
    return Bundles(
        last + 1, active, regions, frozenset(re.findall(r"(%\S+) = int_to_ptr\.hbm", text))
    )


def _operation(text: str) -> Operation:
    text = re.sub(r"^%\d+ = ", "", text)
    found = OPERATION.fullmatch(text)
    if found is None:
        raise ValueError(f"this is no operation of a bundle: {text[:100]}")
    result, name, predicate, rest = (each or "" for each in found.groups())
    operands = tuple(part.strip() for part in rest.split(",") if part.strip())
    return Operation(_register(result), name, predicate, operands, text)


def _register(name: str) -> str:
    """%s93103_s8 lies in the register s8."""
    return name.rsplit("_", 1)[-1]
