"""Statistic trees: what statistics return, as trees like the gradient's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from hlo_surgery.requests.parameter_groups import check_prefix, group_labels, groups_tree
from hlo_surgery.statistics.derived import Derived, Statistic, parts_of


def grouped(statistic: Statistic, numbers: Any) -> Statistic:
    """A statistic grouped by a pytree prefix of the gradient, with output numbers instead."""
    if not isinstance(statistic, Derived) or isinstance(statistic.per, str):
        return statistic
    name, per = statistic.name, statistic.per
    check_prefix(name, per, numbers)
    groups: dict[str, list[int]] = {label: [] for label in jax.tree.leaves(groups_tree(name, per))}
    parts = jax.tree.structure(per).flatten_up_to(numbers)
    for label, part in zip(group_labels(name, per), parts, strict=True):
        groups[label] += jax.tree.leaves(part)
    for label in (label for label, numbers in groups.items() if not numbers):
        raise ValueError(f"per of {name} has a group {label!r}: what is in it has no gradient")
    return replace(statistic, per=groups)


def tree_of(statistic: Statistic, gradient: Any) -> Any:
    """A tree like a statistic's result."""
    fields = parts_of(statistic)
    tree, leaf = gradient, ""
    if isinstance(statistic, Derived):
        leaf = statistic.parts(*[""] * len(fields)) if statistic.parts else ""
        if statistic.like == "own":
            tree = jax.tree.structure(statistic.returns)
        if statistic.like == "group" and statistic.per == "global":
            return leaf
        if statistic.like == "group" and statistic.per != "parameter":
            tree = jax.tree.structure(groups_tree(statistic.name, statistic.per))
    return jax.tree.unflatten(tree, [leaf] * tree.num_leaves)


def shardings_of(
    own: Sequence[Any], statistics: Mapping[str, Statistic], numbers: Any
) -> list[Any]:
    """Of all outputs: what is like the gradient lies as it does."""
    of_gradient = [own[number] for number in jax.tree.leaves(numbers)]
    found = list(own)
    for statistic in statistics.values():
        count = len(jax.tree.leaves(tree_of(statistic, jax.tree.structure(numbers))))
        found += of_gradient if _is_like_gradient(statistic) else [None] * count
    return found


def _is_like_gradient(statistic: Statistic) -> bool:
    """Whether it has an array for each gradient, and no more."""
    return not isinstance(statistic, Derived) or (
        statistic.like == "gradient" and not statistic.parts
    )
