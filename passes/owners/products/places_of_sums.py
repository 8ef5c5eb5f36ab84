"""Places of sums: whether what each example adds to a sum lies at a place of its own in it.

    add %x, (reverse %x)        row i: of examples i and B - 1 - i    =>  at places
    dot_general %matrix, %x     over the examples, %matrix: nobody's, and not the same for all
                                                                      =>  at places
    dot_general %h, %l          over the examples of both             =>  alike for all

Data of the batch that differs from place to place scales what lies at places otherwise for one
example than for another, in a sum as beside the examples' own rows.
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    ELEMENTWISE,
    PICKING,
    Class,
    Owned,
    Summed,
    is_shared,
)
from hlo_surgery.passes.owners.constants import data_in, meets_alike
from hlo_surgery.passes.owners.factors import Meeting, meeting
from hlo_surgery.passes.owners.owners import Owners


def scaled_by_place(
    owners: Owners, op: Operation, classes: Sequence[Class], terms: frozenset[int]
) -> Reason | None:
    """Data that differs from place to place, and scales a sum in which examples have places.

    `terms`: the operands whose sum the result is.
    """
    sites = {c.site for c in classes if isinstance(c, Summed)}
    for i, known in enumerate(classes[: len(op.operands)]):
        data = data_in(known) if is_shared(known) else None
        added = data and linearity.is_linear(op, terms | {i})
        if data and not added and _differs(op.operands[i]):
            return data if any(_keeps_places(owners, site) for site in sites) else None
    return None


def _differs(value: Value) -> bool:
    """Whether a value may hold other numbers at some places than at others."""
    sizes = enumerate(mlir.shape(value))
    return any(n > 1 and not is_uniform(value, PerExample(d), n) for d, n in sizes)


def _keeps_places(owners: Owners, site: Operation) -> bool:
    """Whether what one example adds to a sum may lie elsewhere than what another does."""
    classes = owners.at(site)
    labels = [
        c.labels if isinstance(c, Owned) else owners.nobodys(v).labels
        for c, v in zip(classes, site.operands, strict=False)
    ]
    rows = any(x.varies_along(d) for x in labels for d in range(len(x.shape)))
    if not rows or site.name in ELEMENTWISE | PICKING:
        return rows
    found = meeting(owners, site, labels, max(x.steps for x in labels))
    return found is None or not found.adds_up(0) or _lays_out(site, classes, found)


def _lays_out(site: Operation, classes: Sequence[Class], found: Meeting) -> bool:
    """Whether what no example owns says where in the sum each example's terms go."""
    factors = [set[int]().union(*dims) for dims in found.rule.operands]
    rows = set[int]().union(*(f for f, c in zip(factors, classes, strict=True) if not is_shared(c)))
    return any(
        is_shared(c) and factors[i] - rows and not meets_alike(site.operands[i], i, found)
        for i, c in enumerate(classes)
    )
