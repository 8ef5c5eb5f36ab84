"""Contributions: in which values rows of the examples may lie unnoticed, or have been summed.

    %m = reduce %z over examples
    %r = broadcast %m : [B, D]                    =>  %r: unplaced, its rows may be the examples'
    %g = reduce %r over the same dimension        =>  %g: lost, unless all rows are the same

Where all that is mixed counts as constant, what flows into example b's copy of a parameter is row b
of what flows into all. A sum over rows that were not known as such would be given to the wrong
examples: no gradient may hold one.
"""

from hlo_surgery.passes.example_axes import sharding_rules
from hlo_surgery.passes.example_axes.alignment.places import places_of
from hlo_surgery.passes.example_axes.alignment.uniform import is_uniform
from hlo_surgery.passes.example_axes.lattice import (
    SHARED,
    Axes,
    Class,
    Crossed,
    Local,
    Mixed,
    PerExample,
    Shared,
    Split,
    Summed,
)
from hlo_surgery.passes.example_axes.sharding_rules import Rule
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line

LOST = "rows that may be the examples' own are summed, and it is not known which row is whose"
HELP = (
    "ask for the statistics of other parameters, or let the rows meet values of their examples "
    "(a batch argument) before they are summed"
)
REDUCTION = "stablehlo.reduce"
MIXING = frozenset(
    f"stablehlo.{name}"
    for name in (
        "reduce_window",
        "select_and_scatter",
        "convolution",
        "fft",
        "cholesky",
        "triangular_solve",
    )
) | {"stablehlo.custom_call"}


def settle(axes: Axes, op: Operation, found: list[Class]) -> None:
    """Note of an op's results whether rows may lie in them unnoticed, or were summed. `found`:
    before all is constant.

    A sum of rows that are all the same is the same for every example, and so a constant.
    """
    classes = axes.at(op)
    loose = [
        i
        for i, v in enumerate(op.operands)
        if v in axes.unplaced and not _runs_along(axes, op, classes, i)
    ]
    summed = [i for i in loose if _is_summed(op, classes, i, axes.size)]
    differing = [i for i in summed if not _is_alike(op, i)]
    for number, (result, raw) in enumerate(zip(op.results, found, strict=True)):
        known = axes.of(result)
        if isinstance(known, Summed) and any(isinstance(classes[i], Summed) for i in summed):
            axes.classes[result] = known = Shared(Reason(LOST, op.name, source_line(op)))
        _note(axes, op, number, _loss(axes, op, classes, known, bool(differing)))
        scattered = isinstance(raw, Mixed) and op.name != REDUCTION
        rows = (
            loose
            or scattered
            or _leaves_place(op, classes, known)
            or _makes_rows(axes, op, classes, number)
        )
        (axes.unplaced.add if rows and mlir.shape(result) else axes.unplaced.discard)(result)
        if result in axes.placed and isinstance(known, Shared | Summed):
            axes.classes[result] = axes.placed[result]
            axes.unplaced.discard(result)
            axes.lost.pop(result, None)


def evenly_summed(axes: Axes, op: Operation) -> PerExample | None:
    """The axis over which an op sums a constant, alike in all examples' rows: even shares."""
    axis = axes.even.get(op.operands[0]) if op.name == REDUCTION and len(op.results) == 1 else None
    if (
        axis is None
        or not isinstance(axes.of(op.operands[0]), Shared | Summed)
        or not linearity.sums(op, 0)
    ):
        return None
    return axis if axis.dim in integers(op, "dimensions") else None


def _note(axes: Axes, op: Operation, number: int, loss: Reason | None) -> None:
    result = op.results[number]
    pairs = axes.lost.get(result) if any(isinstance(c, Crossed) for c in axes.at(op)) else None
    loss = pairs or axes.positional.get(result) or loss
    if loss is not None:
        axes.lost[result] = loss
    else:
        axes.lost.pop(result, None)


def _loss(
    axes: Axes, op: Operation, classes: list[Class], known: Class, sums_rows: bool
) -> Reason | None:
    """Why rows were lost in a result; in what has a place of its own they do not matter."""
    if not isinstance(known, Shared | Summed):
        return None
    if sums_rows:
        return Reason(LOST, op.name, source_line(op), HELP)
    parts = range(len(op.operands))
    if isinstance(known, Summed):
        summed = frozenset(i for i, c in enumerate(classes) if not isinstance(c, Shared))
        parts = [
            i
            for i in parts
            if isinstance(classes[i], Summed) or linearity.is_linear(op, summed | {i})
        ]
    return next((axes.lost[op.operands[i]] for i in parts if op.operands[i] in axes.lost), None)


def _factors(axes: Axes, op: Operation, rule: Rule, classes: list[Class]) -> set[int]:
    """The factors in which operands hold examples."""
    places = ((i, place) for i, c in enumerate(classes) for place in places_of(c))
    found = (
        sharding_rules.find_factor(rule, rule.operands[i], op.operands[i], p, axes.size)
        for i, p in places
    )
    return {factor.factor for factor in found if factor}


def _runs_along(axes: Axes, op: Operation, classes: list[Class], number: int) -> bool:
    """Whether a constant meets the examples row by row here, so that its rows are theirs."""
    rule = sharding_rules.rule_of(op)
    if rule is None or not isinstance(classes[number], Shared):
        return False
    own = {factor for factors in rule.operands[number] for factor in factors}
    return bool(own & _factors(axes, op, rule, classes))


def _is_summed(op: Operation, classes: list[Class], number: int, size: int) -> bool:
    """Whether the op sums over dimensions of an operand, other than the examples' own."""
    return op.name in MIXING or bool(_summed_dims(op, classes, number, size))


def _summed_dims(op: Operation, classes: list[Class], number: int, size: int) -> list[int]:
    rule = sharding_rules.rule_of(op)
    if rule is None:
        return []
    value, places = op.operands[number], places_of(classes[number])
    known = {
        sharding_rules.find_factor(rule, rule.operands[number], value, p, size) for p in places
    }
    own = rule.reduced - {factor.factor for factor in known if factor}
    wide = (d for d, length in enumerate(mlir.shape(value)) if length > 1)
    return [d for d in wide if not own.isdisjoint(rule.operands[number][d])]


def _is_alike(op: Operation, number: int) -> bool:
    """Whether all that an op sums of an operand is the same along each dimension summed."""
    value, rule = op.operands[number], sharding_rules.rule_of(op)
    dims = (
        [d for d, f in enumerate(rule.operands[number]) if not rule.reduced.isdisjoint(f)]
        if rule
        else []
    )
    whole = all(is_uniform(value, PerExample(d), mlir.shape(value)[d]) for d in dims)
    return op.name == REDUCTION and whole


def _leaves_place(op: Operation, classes: list[Class], known: Class) -> bool:
    """Whether a place of an operand is none of the result's, and yet its rows were not reduced."""
    most = max((len(c.places) for c in classes if isinstance(c, Crossed)), default=0)
    contracts = op.name in linearity.SUMMING or op.name == REDUCTION
    return not contracts and len(places_of(known)) < most


def _makes_rows(axes: Axes, op: Operation, classes: list[Class], number: int) -> bool:
    """Whether a result of sums or constants has dimensions as long as B that none of these have."""
    result, rule = op.results[number], sharding_rules.rule_of(op)
    known = axes.of(result)
    spreads = isinstance(known, Summed) or (
        known != SHARED and op.name != "stablehlo.broadcast_in_dim"
    )
    if rule is None or not isinstance(known, Summed | Shared) or not spreads:
        return False
    carries = (
        not isinstance(c, Shared) or (isinstance(known, Shared) and c != SHARED) for c in classes
    )
    carried = {
        f
        for own, carrier in zip(rule.operands, carries, strict=False)
        if carrier
        for fs in own
        for f in fs
    }
    new = [
        (d, own) for d, own in enumerate(rule.results[number]) if own and carried.isdisjoint(own)
    ]
    return any(_may_be_rows(axes, op, rule, own, mlir.shape(result)[d]) for d, own in new)


def _may_be_rows(axes: Axes, op: Operation, rule: Rule, own: tuple[int, ...], length: int) -> bool:
    """Whether a dimension is as long as the batch, or a multiple that no parameter has."""
    sources = [
        v
        for v, dims in zip(op.operands, rule.operands, strict=True)
        if any(set(own) & set(f) for f in dims)
    ]
    exact = bool(sources) and all(v in axes.trained for v in sources)
    return length == axes.size if exact else length % axes.size == 0


def settle_flow(axes: Axes, op: Operation) -> bool:
    """Carry the notes into a loop's arguments and out of loops and branches. Whether an argument
    has a new one.
    """
    blocks, loops = [region.blocks[0] for region in op.regions], op.name == "stablehlo.while"
    returned = [mlir.operands(mlir.return_operation(b)) for b in (blocks[1:] if loops else blocks)]
    new: list[bool] = []
    for i, result in enumerate(op.results):
        ends = [*(values[i] for values in returned), *([op.operands[i]] if loops else [])]
        new += [_inherit(axes, block.arguments[i], ends) for block in (blocks if loops else [])]
        _inherit(axes, result, ends)
    return any(new)


def _inherit(axes: Axes, value: Value, sources: list[Value]) -> bool:
    unplaced = value not in axes.unplaced and any(v in axes.unplaced for v in sources)
    lost = value not in axes.lost and next((axes.lost[v] for v in sources if v in axes.lost), None)
    if unplaced:
        axes.unplaced.add(value)
    if lost:
        axes.lost[value] = lost
    return unplaced or bool(lost)


def unclear(axes: Axes, gradient: Value) -> Reason | None:
    """Why the examples' contributions to a gradient are not known; None where they are."""
    known = axes.of(gradient)
    if gradient in axes.lost:
        return axes.lost[gradient]
    if isinstance(known, PerExample | Crossed | Split | Local) and axes.data:
        first = next(iter(axes.data.values()))
        return Reason(
            "this gradient has rows of its own for the examples, and they meet",
            first.op,
            first.where,
            HELP,
        )
    return None
