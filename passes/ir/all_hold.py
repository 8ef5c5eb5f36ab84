"""All hold: whether a claim holds, where each claim rests on others, or fails.

a rests on b and c ; b on nothing ; c on nothing     =>  a, b and c hold
a rests on b and c ; b fails                         =>  a and b fail
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Claim = TypeVar("Claim", bound=Hashable)


def all_hold(
    claim: Claim, rests: Callable[[Claim], Iterable[Claim] | None], known: dict[Claim, bool]
) -> bool:
    """Whether a claim holds: none on which `rests` is None does, nor what rests on such.

    `known`: answers from before, to which those found here are added, so that no claim is looked
    into twice. No claim rests on itself, by way of others either.
    """
    way: list[Claim] = []
    waiting: list[Iterator[Claim]] = [iter([claim])]
    while waiting:
        following = next((c for c in waiting[-1] if not known.get(c, False)), None)
        if following is None:
            waiting.pop()
            known.update(dict.fromkeys(way[-1:], True))
            del way[-1:]
            continue
        more = None if following in known else rests(following)
        way.append(following)
        if more is None:
            known.update(dict.fromkeys(way, False))
            return False
        waiting.append(iter(more))
    return True
