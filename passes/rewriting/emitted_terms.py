"""Emitted terms: whose rows are, by ids, as values of main: at sites, and as checks find it.

Each is computed as soon as all that it is made of is there: so a loop behind may use it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.emit.scopes import FOLLOWING
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.owners.following.terms import Following, Term
from hlo_surgery.passes.rewriting.emitted_weights import (
    emit_weights,
    needed_for,
    sources_of,
)
from hlo_surgery.passes.rewriting.evaluated_terms import Known, evaluated
from hlo_surgery.passes.terms.axes import Axes

Computing = Callable[..., list[jax.Array]]


def emit_terms(axes: Axes, following: Following, block: Block, outputs: Sequence[Value]) -> None:
    """Tell `axes` of the owners at sites, and of the examples met on the way to these outputs."""
    behind = ancestors(outputs)
    checks = [
        check
        for result, each in following.checks.items()
        if not behind.isdisjoint(_made_with(result))
        for check in each.values()
    ]
    weights = emit_weights(following, block, behind)
    met = Term((following.size,), (*checks, *weights), lambda *xs: _any(following.size, xs))
    shown = {r: terms for r, terms in following.sites.items() if r in behind}
    wanted = [met, *(term for terms in shown.values() for term in terms if term is not None)]
    _put_first(block, sources_of(wanted))
    values = _emitted(block, list(dict.fromkeys(wanted)))
    axes.met = values[met]
    axes.sites = {
        result: tuple(None if term is None else values[term] for term in terms)
        for result, terms in shown.items()
    }


def _made_with(result: Value) -> list[Value]:
    """All results of the op that makes one."""
    op = mlir.defining_operation(result)
    return [result] if op is None else mlir.results(op)


def _any(size: int, checks: Sequence[jax.Array]) -> jax.Array:
    return reduce(jnp.logical_or, checks, jnp.zeros(size, bool))


def _put_first(block: Block, values: Sequence[Value]) -> None:
    """Put all that values are made of in front of what they are not made of: a loop may be at a
    site, and the flags of a lookup behind it say whose examples are met there.
    """
    first = needed_for(block, values)
    front = next(op for op in mlir.operations(block) if op not in first)
    for op in first:
        op.move_before(front)


def _emitted(block: Block, wanted: Sequence[Term]) -> dict[Term, Value]:
    """The value of each term, in front of the first op behind all that it is made of."""
    ops = mlir.operations(block)
    places: dict[Value, int] = {r: i for i, op in enumerate(ops) for r in op.results}
    ready = _places(places, wanted)
    values: dict[Term, Value] = {}
    for place in sorted(set(ready.values())):
        here = [term for term in ready if ready[term] == place]
        needed = {x for term, at in ready.items() if at > place for x in term.inputs}
        kept = [term for term in here if term in needed or term in wanted]
        sources = list(
            dict.fromkeys(_sources(values, x) for t in here for x in t.inputs if x not in here)
        )
        made = splice(
            [v for _, v in sources],
            _computing([x for x, _ in sources], kept),
            ops[place + 1],
            scope=FOLLOWING,
        )
        values |= zip(kept, made, strict=True)
    return values


def _places(places: Mapping[Value, int], wanted: Sequence[Term]) -> dict[Term, int]:
    """The number of the last op that each term rests on, -1 for arguments; inputs come first."""
    found: dict[Term, int] = {}

    def place(x: Term | Value) -> int:
        if not isinstance(x, Term):
            return places.get(x, -1)
        if x not in found:
            found[x] = max((place(y) for y in x.inputs), default=-1)
        return found[x]

    for term in wanted:
        place(term)
    return found


def _sources(values: Mapping[Term, Value], x: Term | Value) -> tuple[Term | Value, Value]:
    return x, values[x] if isinstance(x, Term) else x


def _computing(sources: Sequence[Term | Value], kept: Sequence[Term]) -> Computing:
    def computed(*arrays: jax.Array) -> list[jax.Array]:
        known: Known = dict(zip(sources, arrays, strict=True))
        return [evaluated(term, known) for term in kept]

    return computed
