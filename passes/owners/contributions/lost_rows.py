"""Lost rows: in which values rows of the examples may lie unnoticed, or have been summed.

    %m = reduce %z over examples
    %r = broadcast %m : [B, D]                    =>  %r: unplaced, its rows may be the examples'
    %g = reduce %r over the same dimension        =>  %g: data, unless all rows are the same

Where all that is mixed counts as constant, what flows into example b's copy of a parameter is row b
of what flows into all. A sum over rows that were not known as such would be given to the wrong
examples: no gradient may hold one.
"""

from collections.abc import Sequence
from dataclasses import replace

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.sharding_rules import Rule, rule_of
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.ir.traits import Kind, ops_of
from hlo_surgery.passes.owners.classes import (
    Class,
    Crossed,
    Mixed,
    Owned,
    Summed,
    is_bare,
    is_constant_or_sum,
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.contributions.places import places_of
from hlo_surgery.passes.owners.factors import Dims, on_factors
from hlo_surgery.passes.owners.owners import (
    Contributions,
    Owners,
)

LOST = "rows that may be the examples' own are summed, and it is not known which row is whose"
ROWS = "this gradient has rows of its own for the examples, and they meet"
HELP = (
    "ask for the statistics of other parameters, or let the rows meet values of their examples "
    "(a batch argument) before they are summed"
)
REDUCTION = "stablehlo.reduce"
MIXING = ops_of(Kind.MIXES)


def settle(owners: Owners, notes: Contributions, op: Operation, found: Sequence[Class]) -> None:
    """Note of an op's results whether rows may lie in them unnoticed; what sums such rows is data
    of the batch. `found`: before all is constant.

    In what has a place of its own they do not matter; and a sum of rows that are all the same is
    the same for every example.
    """
    classes, rule = owners.at(op), rule_of(op)
    unmet = {i: _unmet(notes, rule, classes, i, v) for i, v in enumerate(op.operands)}
    loose = {i: dims for i, dims in unmet.items() if dims}
    summed = [i for i in loose if op.name in MIXING or _summed_dims(op, classes, i)]
    lost = any(is_sum(classes[i]) or not _is_alike(op, i) for i in summed)
    for number, (result, raw) in enumerate(zip(op.results, found, strict=True)):
        if lost and is_constant_or_sum(owners.of(result)):
            reason = reason_at(op, LOST, HELP)
            owners.classes[result] = replace(owners.nobodys(result), data=reason)
        dims = _made_rows(owners, op, classes, number)
        dims = dims.union(*(_kept(op, rule, i, own, number) for i, own in loose.items()))
        scattered = isinstance(raw, Mixed) and op.name != REDUCTION
        if scattered or _leaves_place(op, classes, owners.of(result)):
            dims |= _long_dims(owners, result)
        notes.unplaced[result] = dims
        _put_in_place(owners, notes, result)


def _put_in_place(owners: Owners, notes: Contributions, result: Value) -> None:
    """Rows that run along with the examples' are theirs."""
    if result in notes.placed and is_constant_or_sum(owners.of(result)):
        owners.classes[result] = Owned(notes.placed[result])
        notes.unplaced[result] = frozenset()


def _unmet(
    notes: Contributions, rule: Rule | None, classes: Sequence[Class], number: int, value: Value
) -> frozenset[int]:
    """The dimensions that may be rows and meet no examples here, whose the rows then were."""
    dims = notes.unplaced.get(value, frozenset())
    if rule is None or not is_shared(classes[number]):
        return dims
    pairs = zip(rule.operands, classes, strict=True)
    met = set[int]().union(*(_factors_of(rule, own, known) for own, known in pairs))
    return frozenset(d for d in dims if met.isdisjoint(rule.operands[number][d]))


def _kept(
    op: Operation, rule: Rule | None, number: int, dims: frozenset[int], result: int
) -> frozenset[int]:
    """The dimensions of a result in which those of an operand are, or any where that is unknown."""
    everywhere = frozenset(range(len(mlir.shape(op.results[result]))))
    if rule is None or op.name in MIXING:
        return everywhere
    own = [rule.operands[number][d] for d in dims]
    factors = {f for each in own for f in each}
    if not all(own) or factors & rule.blocked:
        return everywhere
    return frozenset(d for d in everywhere if not factors.isdisjoint(rule.results[result][d]))


def _long_dims(owners: Owners, value: Value) -> frozenset[int]:
    """The dimensions that are as long as the batch, or a multiple of that."""
    lengths = enumerate(mlir.shape(value))
    return frozenset(d for d, length in lengths if length and length % owners.size == 0)


def _factors_of(rule: Rule, dims: Dims, known: Class) -> set[int]:
    """The factors along which the labels of an operand vary."""
    found = set[int]()
    for labels in places_of(known):
        placed, factors = on_factors(rule, dims, labels)
        found |= {f for k, f in enumerate(factors) if placed.varies_along(k)}
    return found


def _summed_dims(op: Operation, classes: Sequence[Class], number: int) -> list[int]:
    """The dimensions of an operand over which the op sums, other than the examples' own."""
    rule = rule_of(op)
    if rule is None:
        return []
    dims = rule.operands[number]
    own = rule.reduced - _factors_of(rule, dims, classes[number])
    wide = (d for d, length in enumerate(mlir.shape(op.operands[number])) if length > 1)
    return [d for d in wide if not own.isdisjoint(dims[d])]


def _is_alike(op: Operation, number: int) -> bool:
    """Whether all that an op sums of an operand is the same along each dimension summed."""
    value, rule = op.operands[number], rule_of(op)
    if rule is None or op.name != REDUCTION:
        return False
    dims = (d for d, own in enumerate(rule.operands[number]) if not rule.reduced.isdisjoint(own))
    return all(is_uniform(value, PerExample(d), mlir.shape(value)[d]) for d in dims)


def _leaves_place(op: Operation, classes: Sequence[Class], known: Class) -> bool:
    """Whether a labelling of an operand is none of the result's, and yet its rows were not
    reduced.
    """
    most = max((len(c.places) for c in classes if isinstance(c, Crossed)), default=0)
    contracts = op.name in linearity.SUMMING or op.name == REDUCTION
    return not contracts and len(places_of(known)) < most


def _made_rows(
    owners: Owners, op: Operation, classes: Sequence[Class], number: int
) -> frozenset[int]:
    """The dimensions as long as B of a result of sums or constants that none of these have."""
    result, rule = op.results[number], rule_of(op)
    known = owners.of(result)
    if rule is None or not is_constant_or_sum(known) or not _spreads(op, known):
        return frozenset()
    constant = is_shared(known)
    carries = (not is_shared(c) or (constant and not is_bare(c)) for c in classes)
    pairs = zip(rule.operands, carries, strict=False)
    carried = {f for own, carrier in pairs if carrier for fs in own for f in fs}
    rows = enumerate(rule.results[number])
    new = [(d, own) for d, own in rows if own and carried.isdisjoint(own)]
    shape = mlir.shape(result)
    return frozenset(d for d, own in new if _may_be_rows(owners, op, rule, own, shape[d]))


def _spreads(op: Operation, known: Class) -> bool:
    return isinstance(known, Summed) or not (
        is_bare(known) or op.name == "stablehlo.broadcast_in_dim"
    )


def _may_be_rows(
    owners: Owners, op: Operation, rule: Rule, own: tuple[int, ...], length: int
) -> bool:
    """Whether a dimension is as long as the batch, or a multiple that no parameter has."""
    pairs = zip(op.operands, rule.operands, strict=True)
    sources = [v for v, dims in pairs if any(set(own) & set(f) for f in dims)]
    exact = bool(sources) and all(v in owners.trained for v in sources)
    return length == owners.size if exact else length % owners.size == 0


def settle_flow(notes: Contributions, op: Operation) -> bool:
    """Carry the notes into a loop's arguments and out of loops and branches. Whether an argument
    has a new one.
    """
    blocks, loops = [region.blocks[0] for region in op.regions], op.name == "stablehlo.while"
    returned = [mlir.operands(mlir.return_operation(b)) for b in (blocks[1:] if loops else blocks)]
    is_new = False
    for i, result in enumerate(op.results):
        ends = [*(values[i] for values in returned), *([op.operands[i]] if loops else [])]
        arguments = [block.arguments[i] for block in blocks] if loops else []
        dims = frozenset[int]().union(*(notes.unplaced.get(v, frozenset()) for v in ends))
        for value in [result, *arguments]:
            known = notes.unplaced.get(value, frozenset())
            is_new = is_new or (value in arguments and not dims <= known)
            notes.unplaced[value] = known | dims
    return is_new


def met_rows(owners: Owners, gradient: Value) -> Reason | None:
    """Why a gradient that has rows of the examples itself is refused; None where they do not
    meet.
    """
    if places_of(owners.of(gradient)) and owners.data:
        first = next(iter(owners.data.values()))
        return Reason(ROWS, first.op, first.where, HELP)
    return None
