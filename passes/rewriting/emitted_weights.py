"""Emitted weights: what is asked of values as the program runs, such as whether the rows of others
have no weight in attention, by a copy of all that these values are made of.

    %p = softmax .. ; %o = dot_general %p, %v   =>   %p', and whether it is zero where it must be

The copy stands in front of main, since what comes of it is asked of by all that is done with sites,
in loops too; a loop of it carries what its steps find. XLA keeps one of two that are the same.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import (
    add_carries,
    copy_before,
    extend_results,
    extend_return,
)
from hlo_surgery.passes.emit.scopes import FOLLOWING
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.owners.following.terms import Following, Term, Weighed
from hlo_surgery.passes.rewriting.evaluated_terms import Known, evaluated

Copies = dict[Value, Value]
Asked = Mapping[Value, Weighed]


def emit_weights(following: Following, block: Block, behind: set[Value]) -> list[Value]:
    """Which examples are met, [B], as far as the values `behind` some outputs tell; none where
    nothing is asked of them.
    """
    asked = {result: each for result, each in following.weighed.items() if result in behind}
    if not asked:
        return []
    first = mlir.operations(block)[0]
    copies = _copied(block, asked, first)
    return [_found(following.size, block, asked, copies, first)]


def _copied(block: Block, asked: Asked, first: Operation) -> Copies:
    """Copies of all that is asked, and of what it is made of, in front of an op."""
    wanted = {v for each in asked.values() for v in (*each.values, *sources_of(each.terms))}
    copies: Copies = {}
    for op in needed_for(block, wanted):
        copied = copy_before(op, [copies.get(v, v) for v in op.operands], first, FOLLOWING)
        copies |= zip(mlir.results(op), mlir.results(copied), strict=True)
        copies |= zip(mlir.values_within(op), mlir.values_within(copied), strict=True)
        for inner in mlir.nested_operations(copied):
            for number, value in enumerate(mlir.operands(inner)):
                if value in copies:
                    inner.operands[number] = copies[value]
    return copies


def needed_for(block: Block, values: Collection[Value]) -> list[Operation]:
    """The ops of a block that make values, or hold them, and all before that these rest on."""
    wanted, needed = set(values), list[Operation]()
    for op in reversed(mlir.operations(block)):
        if not wanted.isdisjoint([*op.results, *mlir.values_within(op)]):
            needed.append(op)
            wanted |= {*op.operands, *mlir.captured(op)}
    return needed[::-1]


def sources_of(terms: Sequence[Term]) -> list[Value]:
    """The values of the module that terms are made of."""
    pending, found = list[Term | Value](terms), dict[Term | Value, None]()
    while pending:
        x = pending.pop()
        pending += [y for y in x.inputs if y not in found] if isinstance(x, Term) else []
        found[x] = None
    return [x for x in found if not isinstance(x, Term)]


def _found(size: int, block: Block, asked: Asked, copies: Copies, end: Operation) -> Value:
    """Which examples are met by what a block asks, and the loops in it, in front of an op; `copies`
    of the block's values.
    """
    here: list[Weighed] = []
    loops: list[Value] = []
    for op in mlir.operations(block):
        here += [asked[r] for r in op.results if r in asked]
        if op.name == "stablehlo.while" and not set(asked).isdisjoint(mlir.values_within(op)):
            loops.append(_in_loop(size, op, asked, copies))
    return _any_of(size, here, loops, copies, end)


def _in_loop(size: int, loop: Operation, asked: Asked, copies: Copies) -> Value:
    """What the steps of a loop's copy find."""
    copied = mlir.defining_operation(copies[loop.results[0]])
    assert copied is not None
    (none,) = splice([], lambda: [jnp.zeros(size, bool)], copied, scope=FOLLOWING)
    (carried,) = add_carries(copied, [none])
    end = mlir.return_operation(copied.regions[1].blocks[0])
    found = _found(size, loop.regions[1].blocks[0], asked, copies, end)
    either = splice([carried, found], lambda x, y: [x | y], end, scope=FOLLOWING)
    extend_return(end, either)
    renewed = extend_results(copied, [none], 1, [copies], [])
    return mlir.results(renewed)[-1]


def _any_of(
    size: int, here: Sequence[Weighed], loops: Sequence[Value], copies: Copies, end: Operation
) -> Value:
    each_one = (v for each in here for v in (*each.values, *sources_of(each.terms)))
    originals = list(dict.fromkeys(each_one))

    def found(*arrays: jax.Array) -> list[jax.Array]:
        known: Known = dict(zip(originals, arrays, strict=False))
        flags = list(arrays[len(originals) :])
        for each in here:
            asked_of = (evaluated(x, known) for x in (*each.values, *each.terms))
            flags.append(each.found(*asked_of))
        return [reduce(jnp.logical_or, flags, jnp.zeros(size, bool))]

    inputs = [*(copies.get(v, v) for v in originals), *loops]
    (either,) = splice(inputs, found, end, scope=FOLLOWING)
    return either
