"""Parameter groups: which gradients a statistic takes together, from its `per`, each once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.tree_util import keystr

from hlo_surgery.statistics.derived import Derived, Groups

Numbers = Callable[[str | int], Sequence[int]]


def groups_of(
    statistic: Derived, gradients: Sequence[int], names: Sequence[str], of: Numbers
) -> Groups:
    """Positions in `gradients`, output numbers, of those that belong together.

    `names`: of all outputs; `of`: the numbers that a name or position means. Raises ValueError
    where `per` is none.
    """
    per = statistic.per
    if per == "global":
        return (tuple(range(len(gradients))),)
    if per == "parameter":
        return tuple((i,) for i in range(len(gradients)))
    if not isinstance(per, Mapping):
        raise ValueError(
            f"per is {per!r}; it is 'global', 'parameter', or a dict from label to outputs"
        )
    for label, keys in per.items():
        if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
            raise ValueError(
                f"per of {statistic.name} has {keys!r} for {label!r}; it is a list of one output "
                "or more"
            )
    numbers = [[n for key in keys for n in of(key)] for keys in per.values()]
    _check(statistic.name, [n for group in numbers for n in group], gradients, names)
    return tuple(tuple(gradients.index(n) for n in group) for group in numbers)


def _check(
    statistic: str, named: Sequence[int], gradients: Sequence[int], names: Sequence[str]
) -> None:
    """Raises ValueError unless each gradient is named once."""
    wrong = {
        "leave out": [names[n] for n in gradients if n not in named],
        "name what is no gradient:": [names[n] for n in named if n not in gradients],
        "name more than once": [names[n] for n in dict.fromkeys(named) if named.count(n) > 1],
    }
    said = " and ".join(f"{what} {', '.join(found)}" for what, found in wrong.items() if found)
    if said:
        raise ValueError(f"the groups of {statistic} must hold every gradient once; they {said}")


def group_labels(statistic: str, per: Any) -> list[str]:
    """The group of each leaf of a pytree prefix: that of its text, or its own where none is text.

    Raises ValueError where only some are.
    """
    leaves = jax.tree.leaves_with_path(per)
    texts = [leaf for _, leaf in leaves if isinstance(leaf, str)]
    if texts and len(texts) < len(leaves):
        raise ValueError(
            f"per of {statistic} has text for some leaves, and for others none: {per!r}; leaves "
            "with equal text are one group, so give all of them text, or none"
        )
    return texts or [keystr(path) for path, _ in leaves]


def groups_tree(statistic: str, per: Any) -> Any:
    """The groups' labels as the leaves of what a statistic of groups returns: like the prefix, or a
    dict where labels are text.
    """
    labels, prefix = group_labels(statistic, per), jax.tree.structure(per)
    named = isinstance(jax.tree.leaves(per)[0], str)
    return dict(zip(labels, labels, strict=True)) if named else prefix.unflatten(labels)


def grouped(statistic: Derived, numbers: Any) -> Derived:
    """A statistic grouped by a pytree prefix of the gradient, with output numbers instead."""
    if isinstance(statistic.per, str):
        return statistic
    name, per = statistic.name, statistic.per
    try:
        parts = jax.tree.structure(per).flatten_up_to(numbers)
    except ValueError as error:
        raise ValueError(f"per of {name} is no pytree prefix of the gradient: {error}") from None
    groups: dict[str, list[int]] = {label: [] for label in jax.tree.leaves(groups_tree(name, per))}
    for label, part in zip(group_labels(name, per), parts, strict=True):
        groups[label] += jax.tree.leaves(part)
    for label in (label for label, numbers in groups.items() if not numbers):
        raise ValueError(f"per of {name} has a group {label!r}: what is in it has no gradient")
    return replace(statistic, per=groups)
