"""Gradient outputs: those that form a tree like a tree of arguments, in names, shapes and dtypes.

Whatever else looks like an argument may be a gradient too, or a state, an average or a metric: then
nobody but the user can say, and is asked.

The loss among the outputs: the one real number that examples reach, or what the user names.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import jax.numpy as jnp

from hlo_surgery.module import Module, Port
from hlo_surgery.requests.updated_arguments import (
    Path,
    output_path,
    path_of,
    subtrees,
    updated_arguments,
)
from hlo_surgery.wording import listing

# By their numbers.
Ports = Mapping[int, Port]


@dataclass(frozen=True)
class Alike:
    """A node of the outputs whose leaves are like those of a node of the arguments. `named`: by
    their names as well.
    """

    node: Path
    argument: Path
    outputs: tuple[int, ...]
    named: bool


class UnclearGradients(ValueError):
    """Which outputs are gradients is not clear. `guess`: those that are likely, `like` which node
    of the arguments.
    """

    def __init__(self, why: str, outputs: Ports, guess: Alike | None = None) -> None:
        self.guess, self.typed = guess, _typed(guess) if guess else ""
        self.said = f"{node_text(guess.node)}, like {node_text(guess.argument)}" if guess else ""
        way = f"; for those like {node_text(guess.argument)} pass {self.typed}" if guess else ""
        super().__init__(f"which outputs are gradients is not clear: {why}; {_ask(outputs)}{way}")


def is_inexact(port: Any) -> bool:
    """Whether a port or array holds floats or complex numbers, those that numpy lacks included."""
    return bool(jnp.issubdtype(port.dtype, jnp.inexact))


def gradient_outputs(module: Module, batch: Collection[int]) -> tuple[int, ...]:
    """The outputs that are gradients, where their names leave no doubt. `batch`: the arguments with
    examples.

    Raises ValueError that lists what may be meant, and says how to choose.
    """
    earlier = module.statistics
    outputs = {i: p for i, p in enumerate(module.outputs) if is_inexact(p) and i not in earlier}
    parameters = {i: p for i, p in enumerate(module.arguments) if is_inexact(p) and i not in batch}
    if not outputs:
        listed = ", ".join(map(port_text, module.outputs)) or "none"
        raise ValueError(
            f"the module has no gradient: no output is a floating-point array (outputs: {listed})"
        )
    # JAX leaves out arguments on which nothing depends, as where the loss is linear in them.
    if not parameters and len(outputs) == 1:
        return tuple(outputs)
    updated = updated_arguments(module)
    alike = _outermost(_alike(module, outputs, parameters))
    found = [one for one in alike if updated.isdisjoint(one.outputs)]
    if alike and not found:
        raise UnclearGradients(_updated([node_text(one.node) for one in alike]), outputs)
    if len(found) != 1:
        why = _which(found, outputs, [module.arguments[i] for i in sorted(batch)])
        raise UnclearGradients(why, outputs, _first(found, parameters))
    (tree,) = found
    left = {i: p for i, p in outputs.items() if i not in updated}
    others = _others(tree, left, parameters).items()
    others = [port_text(p) for i, p in others if i not in tree.outputs]
    if others:
        why = f"{node_text(tree.node)} is a tree like the arguments, and {listing(others)} may be "
        raise UnclearGradients(f"{why}gradients as well", outputs, tree)
    return tree.outputs


def refuse_more_numbers(module: Module, batch: Collection[int], picked: Collection[int]) -> None:
    """Raises ValueError if more of the outputs picked than parameters are numbers: one is a loss or
    metric.
    """
    parameters = [p for i, p in enumerate(module.arguments) if i not in batch]
    outputs = [p for i, p in enumerate(module.outputs) if i in picked]
    numbers, own = (
        [p for p in ports if is_inexact(p) and not p.shape] for ports in (outputs, parameters)
    )
    if len(numbers) > len(own):
        named = listing([port_text(p) for p in numbers])
        raise ValueError(
            f"not all of these can be gradients: {named}; pick those in gradients=lambda outputs: "
            "..."
        )


def refuse_updated(module: Module, picked: Collection[int]) -> None:
    """Raises ValueError if an output picked is an argument updated, and so no gradient."""
    updated = sorted(updated_arguments(module) & set(picked))
    names = [module.outputs[i].name for i in updated]
    if names:
        raise ValueError(
            f"not all of these can be gradients: {_updated(names)}; return the gradients, or pick "
            "them in gradients=lambda outputs: ..."
        )


def _alike(module: Module, outputs: Ports, parameters: Ports) -> list[Alike]:
    """All nodes of outputs like nodes of arguments; single arrays only where no trees are."""
    if all(p.name == f"arg{i}" for i, p in parameters.items()):
        return _alike_in_order(module, outputs, parameters)
    below_outputs = subtrees({i: output_path(p.name) for i, p in outputs.items()})
    below_arguments = subtrees({i: path_of(p.name) for i, p in parameters.items()})
    known: dict[frozenset[Any], Path] = {}
    for node, leaves in sorted(below_arguments.items(), key=lambda node: len(node[0])):
        known.setdefault(_kinds(leaves, parameters), node)
    zeros = {i for i in outputs if module.returns_zero(i)}
    found: list[Alike] = []
    for node, leaves in below_outputs.items():
        argument = known.get(_kinds(leaves, outputs)) or _but_for(zeros, leaves, outputs, known)
        if argument is not None:
            is_named = len(argument) == 1 or () not in leaves
            found.append(Alike(node, argument, tuple(sorted(leaves.values())), is_named))
    return [one for one in found if one.named] or [
        one for one in found if outputs[one.outputs[0]].shape
    ]


def _kinds(leaves: Mapping[Path, int], ports: Ports) -> frozenset[Any]:
    return frozenset((path, ports[number].kind) for path, number in leaves.items())


def _but_for(
    zeros: Collection[int],
    leaves: Mapping[Path, int],
    outputs: Ports,
    known: Mapping[frozenset[Any], Path],
) -> Path | None:
    """The arguments' node that lacks only leaves of zero gradient, the unused, which JAX omits."""
    absent = {path: number for path, number in leaves.items() if number in zeros}
    if not absent:
        return None
    every = _kinds(leaves, outputs)
    needed = every - _kinds(absent, outputs)
    return next((node for kinds, node in known.items() if kinds and needed <= kinds <= every), None)


def _alike_in_order(module: Module, outputs: Ports, parameters: Ports) -> list[Alike]:
    """Without argument names, nodes of outputs whose leaves are like all parameters in order."""
    wanted = [p.kind for p in parameters.values()]
    found: list[Alike] = []
    for node, leaves in subtrees({i: _unnamed_path(p.name, i) for i, p in outputs.items()}).items():
        numbers = tuple(sorted(leaves.values()))
        alike = [outputs[i].kind for i in numbers] == wanted
        if alike and (
            not _is_tuple(leaves) or _is_tuple_of_gradients(module, leaves, list(parameters))
        ):
            found.append(Alike(node, ("",), numbers, False))
    return found


def _is_tuple(leaves: Mapping[Path, int]) -> bool:
    """Whether these are several results in a tuple, of which some may be a loss, or another tree
    than the gradient.
    """
    return len(leaves) > 1 and all(path and re.fullmatch(r"\[\d+\]", path[0]) for path in leaves)


def _is_tuple_of_gradients(
    module: Module, leaves: Mapping[Path, int], parameters: Sequence[int]
) -> bool:
    """Whether it is a tuple of arrays, of which each rests on another's parameter if that rests on
    its own.

    Second derivatives are symmetric; new states and averages rest on the parameters, and no
    gradient rests on them.
    """
    sources = module.sources()
    pairs = list(zip(sorted(leaves.values()), parameters, strict=True))
    symmetric = all(
        (p in sources[k]) == (q in sources[i]) for (i, p), (k, q) in combinations(pairs, 2)
    )
    return symmetric and all(
        len(path) == 1 and module.outputs[i].shape for path, i in leaves.items()
    )


def _unnamed_path(name: str, number: int) -> Path:
    path = output_path(name)
    return path if path[0] == "" else ("", f"[{number}]")


def _outermost(found: Sequence[Alike]) -> list[Alike]:
    """Of nodes within one another, the outermost; of those with the same leaves, the first."""
    kept: dict[tuple[int, ...], Alike] = {}
    for one in sorted(found, key=lambda one: len(one.node)):
        if not any(set(one.outputs) <= set(outer) for outer in kept):
            kept[one.outputs] = one
    return list(kept.values())


def _others(tree: Alike, outputs: Ports, parameters: Ports) -> dict[int, Port]:
    """What else may be a gradient: arrays like a parameter that the tree has none of, and what
    stands beside the tree in a larger one like it.
    """
    kinds = {p.kind for p in parameters.values() if p.shape and not _is_below(p, tree.argument)}
    node, argument = tree.node, tree.argument
    while len(argument) > 1 and node[-1] == argument[-1]:
        node, argument = node[:-1], argument[:-1]
    inside = subtrees({i: output_path(p.name) for i, p in outputs.items()}).get(node, {}).values()
    return {i: p for i, p in outputs.items() if p.kind in kinds or i in inside}


def _is_below(port: Port, node: Path) -> bool:
    """Whether an argument belongs to a node, that of all without names."""
    return node == ("",) or path_of(port.name)[: len(node)] == node


def _first(found: Sequence[Alike], parameters: Ports) -> Alike | None:
    """That like the first of the arguments."""
    ports = parameters.values()
    likes = ((one, p) for p in ports for one in found if _is_below(p, one.argument))
    return next((one for one, _ in likes), None)


def _typed(tree: Alike) -> str:
    """How to name a tree of gradients."""
    name = "".join(tree.node)
    return f"gradients={[*tree.outputs]}" if not name else f"gradients=[{json.dumps(name)}]"


def _which(found: Sequence[Alike], outputs: Ports, batch: Sequence[Port]) -> str:
    if found:
        each = [f"{node_text(one.node)} (like {node_text(one.argument)})" for one in found]
        return f"the outputs form {len(found)} trees like arguments: {listing(each)}"
    kinds = {port.kind for port in outputs.values()}
    like = [port_text(port) for port in batch if port.kind in kinds]
    more = f" (an output is like {listing(like)}: does it hold examples?)" if like else ""
    return f"no outputs form a tree like a tree of the arguments, with its shapes and dtypes{more}"


def _updated(names: Sequence[str]) -> str:
    return (
        f"in {listing(names)} is most of an argument plus or minus something: updated parameters, "
        "no gradient"
    )


def _ask(outputs: Ports) -> str:
    each = listing([f"{i} {port_text(p)}" for i, p in outputs.items()])
    how = (
        "gradients=[...] (--gradient) by name or position, where the name of a tree means all "
        "that is in it"
    )
    return (
        f"name them in {how}, or let the function return them, as jax.grad(loss) does; there are: "
        f"{each}"
    )


def port_text(port: Port) -> str:
    """Name, dtype and shape: "['w']: float32[3, 5]"."""
    return f"{port.name}: {port.kind}"


def node_text(node: Path) -> str:
    """The name of a node, as it stands in the names of ports."""
    return "".join(node) or "all outputs"


def loss_output(module: Module, batch: Collection[int], gradients: Collection[int]) -> int:
    """The output that is the loss, where there is one that can be. `batch`: the arguments with
    examples.

    Raises ValueError where there is none, or more than one.
    """
    reached = [i for i, sources in enumerate(module.sources()) if not sources.isdisjoint(batch)]
    others = {*gradients, *module.statistics}
    found = [i for i in reached if i not in others and is_number(module.outputs[i])]
    if not found:
        raise ValueError(
            "per_example_losses needs a module that returns its loss, as that of "
            "jax.value_and_grad does"
        )
    if len(found) > 1:
        listed = listing([f"{i} {port_text(module.outputs[i])}" for i in found])
        names = [module.outputs[i].name for i in found]
        likely = next((name for name in names if "loss" in name.lower()), names[0])
        raise ValueError(
            f"which output is the loss is not clear: {listed}; name it in loss=... (--loss), "
            f"such as loss={json.dumps(likely)}"
        )
    return found[0]


def named_loss(module: Module, gradients: Collection[int], numbers: Sequence[int]) -> int:
    """The output that the user says is the loss, the only one of a tree. Raises ValueError where it
    cannot be.
    """
    if len(numbers) > 1:
        listed = listing([port_text(module.outputs[i]) for i in numbers])
        raise ValueError(f"the loss is one real number; this is a tree of {listed}: name one")
    (number,) = numbers
    port = module.outputs[number]
    if number in gradients:
        raise ValueError(f"output {port.name} is named both as the loss and as a gradient")
    if not is_number(port):
        raise ValueError(f"the loss is one real number; output {port_text(port)} is none")
    return number


def is_number(port: Port) -> bool:
    """Whether an output is a single real number."""
    return not port.shape and bool(jnp.issubdtype(port.dtype, jnp.floating))
