"""Scopes: what an added op is for, as the name in its location, which XLA keeps into profiles.

multiply %g, %g    =>    multiply %g, %g   loc("hlo_surgery/second_moment/['w']/square")
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, unquote

import jax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, ir

ROOT = "hlo_surgery"
ANY = "*"
LISTED = 2
# In the names of what is traced, JAX's name stack holds these among its own words.
_TAG = re.compile(rf"{ROOT}\.(statistic|output|strategy)=([\w.%~-]*)")
# What parts a location's name, and where XLA cuts it off.
_PARTING = str.maketrans("/@", "||")


@dataclass(frozen=True)
class Scope:
    """What an op is for: a strategy or stage of the rewriting, an output, a statistic; `*` where
    several have it in common.
    """

    strategy: str = ANY
    output: str = ANY
    statistic: str = ANY

    def __str__(self) -> str:
        parts = (self.statistic, self.output, self.strategy)
        return "/".join([ROOT, *map(in_location, parts)])


def in_location(name: str) -> str:
    """A name as it stands in a location.

    >>> in_location("['linear/~']")
    "['linear|~']"
    """
    return name.translate(_PARTING)


# Stages that outputs and statistics have in common.
LIFT, HOIST, HOISTED_STACK, STACK, STEPS, PADDING = map(
    Scope, ("lift", "hoist", "hoisted stack", "stack", "microbatches", "padding")
)


def within(part: str, names: Iterable[str]) -> AbstractContextManager[Any]:
    """What is traced within is for the `statistic`, `output` or `strategy` of these names."""
    each = list(dict.fromkeys(names))
    tag = f"{ROOT}.{part}={quote(_listed(each), safe='')}"
    return jax.named_scope(tag) if each else nullcontext()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return "+".join(names[:LISTED]) + (f"+{more} more" if more > 0 else "")


def scope_of(op: Operation) -> Scope | None:
    """What an op was added for; None of an op of the original."""
    for name in _names(cast(Any, op.location)):
        parts = name.split("/")
        if parts[0] == ROOT and len(parts) == 4:
            return Scope(parts[3], parts[2], parts[1])
    return None


def location_for(scope: Scope, source: Operation) -> ir.Location:
    """The location of an op that is added for this, and stands for one of the program."""
    with mlir.context():
        return ir.Location.name(str(scope), source.location)


def set_scope(op: Operation, scope: Scope, source: Operation) -> None:
    """Say what an op was added for, and for which of the program it stands."""
    cast(Any, op).location = location_for(scope, source)


def keep_names_alone(ops: Iterable[Operation]) -> None:
    """Forget which of our own lines ops were traced at. JAX has its name stack outside of them."""
    for op in ops:
        names = "/".join(_outer_names(cast(Any, op.location)))
        with mlir.context():
            cast(Any, op).location = ir.Location.name(names)


def set_traced_scopes(
    ops: Sequence[Operation], scope: Scope, sources: Mapping[str, Operation], source: Operation
) -> None:
    """Say of ops that were traced what they are for; `sources`: for which op those of an output
    stand. What JAX shares, as constants, is for what uses it.
    """
    known: dict[Operation, Scope] = {}
    for op in reversed(ops):
        own = _tagged(scope, tuple(_names(cast(Any, op.location))))
        users = (user for result in op.results for user in mlir.users(result) if user in known)
        known[op] = own or next((known[user] for user in users), scope)
    # Most ops share theirs with many others, and to make a location takes longer than to find it.
    places = {
        own: location_for(own, sources.get(own.output, source)) for own in set(known.values())
    }
    for op, own in known.items():
        cast(Any, op).location = places[own]


@lru_cache(maxsize=1024)
def _tagged(scope: Scope, names: tuple[str, ...]) -> Scope | None:
    """A scope with the innermost tag of each part, from inner names to outer; None without any."""
    found = {part: text for name in reversed(names) for part, text in _TAG.findall(name)}
    tags = {part: _unquoted(text) for part, text in found.items()}
    return replace(scope, **tags) if tags else None


# Names are many, since each ends in what its op does; tags are few.
_unquoted = lru_cache(maxsize=4096)(unquote)


def _outer_names(location: Any) -> Iterator[str]:
    while isinstance(location, ir.NameLoc):
        yield str(location.name_str)
        location = location.child_loc


def _names(location: Any) -> Iterator[str]:
    """The names in a location, those of a callee before those of its call."""
    pending = [location]
    while pending:
        match current := pending.pop():
            case ir.NameLoc():
                yield str(current.name_str)
                pending.append(current.child_loc)
            case ir.CallSiteLoc():
                pending += [current.caller, current.callee]
            case _:
                pass
