"""Sums: what an op makes of sums over the examples, r + sum of c_b.

    linear in them, jointly    f(r + sum c_b) = f(r) + sum of f's linear part at c_b: a sum
    beside what is owned       a term of one example is one more term; rows of all examples that
                               meet a sum of data meet a constant, if parameters do not reach it
    in any other way           data counts as a constant; else the examples meet

Where a sum of data goes on with one example's term, both readings are kept until one is used: the
term more, as Summed, and the example's value beside a constant, as `instead`.

A product of sums is no sum, and as a constant undivided: (a b) c is a (b c), so that whose share it
is depends on the reading.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import NAN_HELP, STEPS_HELP, SUMS_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import reason_at, source_line
from hlo_surgery.passes.owners.alignment.constant_parts import sums_of
from hlo_surgery.passes.owners.classes import (
    APART,
    ELEMENTWISE,
    MOVED,
    PICKED,
    PICKING,
    Class,
    Mixed,
    Owned,
    Summed,
    mixed,
    owned_operands,
    summed_operands,
)
from hlo_surgery.passes.owners.constants import (
    added_data,
    demoted,
    differs_beside,
    held,
    is_undivided,
    rearranged,
)
from hlo_surgery.passes.owners.labelling.fillings import fills
from hlo_surgery.passes.owners.offsets import refused_as_uneven
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.products.places_of_sums import scaled_by_place
from hlo_surgery.passes.owners.products.products_of_sums import (
    FACTOR,
    multiplies_elements,
    product_of,
)

Transfer = Callable[[Owners, Operation, Sequence[Class]], list[Class]]


def constant(owners: Owners, op: Operation, classes: Sequence[Class]) -> list[Class]:
    """What an op makes of values that no example reaches: undivided where it is linear in what is,
    or multiplies it.
    """
    products = [i for i, c in enumerate(classes) if is_undivided(c)]
    kept = [classes[i] for i in products if _keeps_product(op, i)]
    data = held(kept or [_settled(c) for c in classes])
    vacant = len(op.operands) > 0 and not fills(owners, op, classes)
    return [_constant_of(owners, r, data, vacant) for r in op.results]


def _constant_of(
    owners: Owners, value: mlir.Value, data: Reason | None, vacant: bool = False
) -> Owned:
    bare = owners.nobodys(value)
    return replace(bare, data=data, vacant=vacant) if data or vacant else bare


def _keeps_product(op: Operation, position: int) -> bool:
    own = frozenset([position])
    return linearity.is_linear(op, own) or multiplies_elements(op)


def _settled(known: Class) -> Class:
    """A constant that is no product of sums any more."""
    if isinstance(known, Owned) and known.data and is_undivided(known):
        data = known.data
        return replace(known, data=replace(data, why=FACTOR))
    return known


def classify_sums(
    owners: Owners, op: Operation, classes: Sequence[Class], again: Transfer
) -> list[Class]:
    """The classes of an op's results; `again` classifies it with other classes of its operands."""
    summed = summed_operands(classes)
    if product := _scaling_product(owners, op, classes, summed):
        demoted(owners, op, classes, summed)
        return [_constant_of(owners, r, product) for r in op.results]
    if owned_operands(classes):
        return _beside_owned(owners, op, classes, again)
    if linearity.is_linear(op, summed):
        return _one_sum(owners, op, classes, summed, again)
    return _not_linear(owners, op, classes, again)


def _scaling_product(
    owners: Owners, op: Operation, classes: Sequence[Class], summed: frozenset[int]
) -> Reason | None:
    """A product that scales a sum, where it might as well be the sum that scales a factor of it.

    Of a sum that parameters reach and a product of data, the product is the constant.
    """
    trained = any(owners.is_trained(op, i) for i in summed)
    for i, known in enumerate(classes[: len(op.operands)]):
        alone = is_undivided(known) and linearity.is_linear(op, frozenset([i]))
        scales = alone and not linearity.is_linear(op, summed | {i})
        if scales and (owners.is_trained(op, i) or not trained):
            assert isinstance(known, Owned)
            return known.data
    return None


def _one_sum(
    owners: Owners,
    op: Operation,
    classes: Sequence[Class],
    terms: frozenset[int],
    again: Transfer,
) -> list[Class]:
    """A sum of all these, some of which may be one example's."""
    if refused := refused_as_uneven(owners, op, classes):
        return [refused] * len(op.results)
    scale = None if owners.contributions else scaled_by_place(owners, op, classes, terms)
    if scale:
        return [rearranged(op, scale)] * len(op.results)
    data = added_data(op, classes, terms)
    other = _other_reading(owners, op, classes, again)
    return [Summed(_site(classes), data, c if isinstance(c, Owned) else None) for c in other]


def _other_reading(
    owners: Owners, op: Operation, classes: Sequence[Class], again: Transfer
) -> Sequence[Class | None]:
    """What the op makes where sums before it are constants, if that may be an example's value: sums
    of data, and in contributions any.
    """
    summed = summed_operands(classes)
    trained = any(owners.is_trained(op, i) for i in summed)
    read = [c for c in classes if isinstance(c, Summed) and c.instead]
    if (trained and owners.contributions is None) or not (read or owned_operands(classes)):
        return [None] * len(op.results)
    data, taken, uneven = dict(owners.data), dict(owners.taken), set(owners.uneven)
    found = again(owners, op, demoted(owners, op, classes, summed))
    owners.data, owners.taken, owners.uneven = data, taken, uneven
    return found


def _beside_owned(
    owners: Owners, op: Operation, classes: Sequence[Class], again: Transfer
) -> list[Class]:
    summed, own = summed_operands(classes), owned_operands(classes)
    data = frozenset(i for i in summed if not owners.is_trained(op, i))
    many = [c for i in own if _is_of_many(c := classes[i])]
    constants = summed if owners.contributions else data
    steady = frozenset(i for i in constants if many and not _differs(owners, op, classes, i))
    if steady:
        return again(owners, op, demoted(owners, op, classes, steady))
    rows = any(isinstance(c, Owned) and c.labels.has_several for c in many)
    alone = owners.contributions is None and _is_from_earlier_steps(owners, op, classes)
    # A device's terms look like rows: by element they are told from what is used otherwise.
    within = rows and not alone and not owners.by_element
    if linearity.is_linear(op, summed | own) and (data == summed or not within):
        return _one_sum(owners, op, classes, summed | own, again)
    if _sums_onto(owners, op, classes, summed, again):
        return [Summed(_site(classes), added_data(op, classes, summed))] * len(op.results)
    return _not_linear(owners, op, classes, again)


def _is_of_many(known: Class) -> bool:
    """Whether a value belongs to several examples, in one step or over all."""
    return isinstance(known, Owned) and known.labels.owners.size > 1


def _differs(owners: Owners, op: Operation, classes: Sequence[Class], number: int) -> bool:
    """Whether each example that the op has beside a sum of data meets another place or step of
    it.
    """
    value = op.operands[number]
    for known in (classes[i] for i in owned_operands(classes)):
        assert isinstance(known, Owned)
        labels = known.labels
        steps = zip(owners.loops, labels.owners.shape[: labels.steps], strict=False)
        if any(n > 1 and varies(owners.varying, loop.op, value) for loop, n in steps):
            return True
    return differs_beside(owners, op, classes, number)


def _sums_onto(
    owners: Owners,
    op: Operation,
    classes: Sequence[Class],
    summed: frozenset[int],
    again: Transfer,
) -> bool:
    """Whether the op sums what examples own on top of sums."""
    onto = summed <= frozenset(linearity.initial_operands(op))
    if not onto or op.name not in linearity.SUMMING_BODIES or not _adds(op):
        return False
    pairs = zip(op.operands, classes, strict=True)
    bare = [owners.nobodys(v) if isinstance(c, Summed) else c for v, c in pairs]
    return all(_joins_a_sum(c) for c in again(owners, op, bare))


def _adds(op: Operation) -> bool:
    return all(linearity.added_results(op))


def _joins_a_sum(known: Class) -> bool:
    """Whether a value may be a term of a sum: no rows of several examples."""
    return isinstance(known, Summed) or (isinstance(known, Owned) and not known.labels.has_several)


def _not_linear(
    owners: Owners, op: Operation, classes: Sequence[Class], again: Transfer
) -> list[Class]:
    """Sums used as no sum could be: data is a constant, what parameters reach is refused."""
    summed = summed_operands(classes)
    data = frozenset(i for i in summed if not owners.is_trained(op, i))
    if op.name == "stablehlo.divide" and 1 in data:
        return again(owners, op, demoted(owners, op, classes, [1]))
    if owners.contributions is None:
        if data != summed:
            return [_meeting(owners, op, classes)] * len(op.results)
        if met := _met_apart(owners, op, classes, data):
            return [met] * len(op.results)
    # Of a sum that parameters reach and one of data, the data is the constant.
    constants = demoted(owners, op, classes, data or summed)
    product = product_of(op, summed) if len(data) in (0, len(summed)) else None
    if product:
        return [_constant_of(owners, r, product) for r in op.results]
    return again(owners, op, constants)


def _met_apart(
    owners: Owners, op: Operation, classes: Sequence[Class], data: frozenset[int]
) -> Mixed | None:
    """Sums of data of which each example meets a place or step of its own."""
    for i in data if owned_operands(classes) else ():
        if _differs(owners, op, classes, i):
            known = classes[i]
            assert isinstance(known, Summed)
            site = reason_at(known.site, "a sum of data over the batch")
            return rearranged(op, known.data or site)
    return None


def _site(classes: Sequence[Class]) -> Operation:
    return next(c.site for c in classes if isinstance(c, Summed))


def _unlike_a_sum(site: Operation) -> str:
    """How examples meet in an op that adds them up, but is not written as a sum of all."""
    if site.name in PICKING:
        return PICKED
    if site.name == "stablehlo.reduce_window":
        return MOVED
    return APART if site.name in ELEMENTWISE and not mlir.enclosing_loops(site) else ""


def _meeting(owners: Owners, op: Operation, classes: Sequence[Class]) -> Mixed:
    site = _site(classes)
    if why := _unlike_a_sum(site):
        return mixed(site, why)
    line = f"{site.name} at {source_line(site)}"
    if _is_from_earlier_steps(owners, op, classes):
        why = f"a sum over the examples of earlier steps ({line}) meets each example's own values"
        return mixed(op, why, help=STEPS_HELP)
    if owned_operands(classes):
        return mixed(op, f"a sum over the examples ({line}) meets each example's own values")
    summed = summed_operands(classes)
    if _is_guard(op):
        return mixed(op, f"a sum over the examples ({line}) is tested for NaN", help=NAN_HELP)
    if len(summed) > 1:
        first = frozenset([min(summed)])
        met = "are multiplied" if linearity.is_linear(op, first) else "meet, and are not added"
        why = f"two sums over the examples (the first by {line}) {met}"
    else:
        why = f"a sum over the examples ({line}) is used in a way that is not linear"
    return mixed(op, why, help=SUMS_HELP)


def _is_guard(op: Operation) -> bool:
    """Whether an op asks if a number is one, as guards do."""
    same = op.name == "stablehlo.compare" and op.operands[0] == op.operands[1]
    return same or op.name == "stablehlo.is_finite"


def _is_from_earlier_steps(owners: Owners, op: Operation, classes: Sequence[Class]) -> bool:
    """Whether a sum that a loop carries on, such as updated parameters, meets a step's examples."""
    bodies: list[Any] = []
    for labels in (c.labels for c in classes if isinstance(c, Owned) and not c.is_shared):
        counts = labels.owners.shape[: labels.steps]
        differing = [loop for loop, n in zip(owners.loops, counts, strict=False) if n > 1]
        bodies += [loop.op.regions[1].blocks[0] for loop in differing]
    summed = [op.operands[i] for i in summed_operands(classes)]
    sums = closure(summed, partial(sums_of, owners))
    return any(cast(Any, value.owner) in bodies for value in sums)
