"""Updated arguments: outputs that are an argument plus or minus something, as new parameters are.

    func @main(%w, %x) { %g = ... ; %step = 0.1 * %g ; %new = 0.99 * %w - %step ; return %new }

returns no gradient, though its output has the name and shape of one: it holds most of an argument.
So does what keeps an argument at some steps, in some rows or in a vector of all. Weight decay,
`%g + 0.1 * %w`, is none of these: a gradient holds little of it.

Port paths: names of arguments and outputs, which JAX makes of places in pytrees, as trees again.

The name `params['layers'][0].bias` has the path `params`, `['layers']`, `[0]`, `.bias`; an output's
begins with "".
"""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, cast

from hlo_surgery.module import Module, Port
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.modules import inline_calls

Path = tuple[str, ...]
KEY = re.compile(r"""\['(?:[^'\\]|\\.)*'\]|\["(?:[^"\\]|\\.)*"\]|\[[^][]*\]|\.[^][.]+""")


def path_of(name: str) -> Path:
    """The root of a name, and the keys behind it; a name of no such form is a root of its own.

    >>> path_of("params['a.b'][0].w")
    ('params', "['a.b']", '[0]', '.w')
    """
    root = re.match(r"[^][.]*", name)
    keys = KEY.findall(name, root.end() if root else 0)
    return (name[: root.end()], *keys) if root and "".join(keys) == name[root.end() :] else (name,)


def output_path(name: str) -> Path:
    """The path of an output; JAX calls the only one of a function `result`."""
    return ("",) if name == "result" else path_of(name)


def subtrees(paths: Mapping[int, Path]) -> dict[Path, dict[Path, int]]:
    """By the path of each node, the numbers of the leaves below it by their paths from there."""
    found: dict[Path, dict[Path, int]] = {}
    for number, path in paths.items():
        for depth in range(1, len(path) + 1):
            found.setdefault(path[:depth], {})[path[depth:]] = number
    return found


def below(name: str, names: Iterable[str]) -> list[int]:
    """The positions of those names that are in the tree called `name`.

    >>> below("[1]", ["[0]", "[1]['b']", "[1]['w']", "[10]"])
    [1, 2]
    """
    node = output_path(name)
    return [i for i, other in enumerate(names) if output_path(other)[: len(node)] == node]


def picked_ports(ports: Sequence[Port], key: str | int, kind: str) -> list[int]:
    """A port by name or position, or all of a tree by the name of that."""
    names = [port.name for port in ports]
    tree = below(key, names) if isinstance(key, str) and key not in names else []
    return tree or [port_number(ports, key, kind)]


def port_number(ports: Sequence[Port], key: str | int, kind: str) -> int:
    """The position of the one port that a name, or a position, is of."""
    names = [port.name for port in ports]
    if isinstance(key, str):
        if names.count(key) != 1:
            how = "no" if key not in names else "more than one"
            there = f"{', '.join(names)}{_left_out(names, kind)}"
            way = f"; give its position, such as {names.index(key)}" if key in names else ""
            raise ValueError(f"{how} {kind} is named {key!r}; there are {there}{way}")
        return names.index(key)
    number = as_integer(f"the position of the {kind}", key)
    if not -len(ports) <= number < len(ports):
        raise ValueError(f"there is no {kind} {number}; the module has {len(ports)}")
    return number % len(ports)


def as_integer(what: str, number: Any) -> int:
    """Raises TypeError for what is none."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{what} is {number!r}; it is an integer") from None


def _left_out(names: Sequence[str], kind: str) -> str:
    """What to do where a dump has lost the names that its ports had, or arguments."""
    if all(re.fullmatch(r"arg\d+", name) for name in names):
        return "; dump the module with as_text(debug_info=True), which keeps the names"
    if kind != "argument":
        return ""
    return "; one that nothing uses is left out by jax.jit, unless given keep_unused=True"


SAME = frozenset(
    [
        "stablehlo.broadcast_in_dim",
        "stablehlo.convert",
        "stablehlo.optimization_barrier",
        "stablehlo.reduce_precision",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.slice",
        "stablehlo.transpose",
        "sdy.sharding_constraint",
    ]
)
# Of which operands the result holds elements, beside others.
HOLDS = {
    "stablehlo.concatenate": slice(None),
    "stablehlo.dynamic_slice": slice(0, 1),
    "stablehlo.dynamic_update_slice": slice(0, 2),
    "stablehlo.gather": slice(0, 1),
    "stablehlo.pad": slice(0, 2),
    "stablehlo.select": slice(1, 3),
}
# A value as a sum: how often it holds an argument, one, and what is neither.
Terms = Mapping[Value | str, float]
ONE, OTHER = "1", "other"
OTHERS: Terms = {OTHER: 1.0}
# An argument's share in its update, by a learning rate times a decay of a tenth at the most, or in
# a running mean: unlike that of weights in the gradient of their decay, or of a bias in that of a
# square. In bfloat16 0.9 is 0.8984.
LEAST, MOST = 0.898, 1.0


def updated_arguments(module: Module) -> frozenset[int]:
    """The outputs that are most of an argument of their own shape plus or minus something."""
    code = mlir.clone(module.code)
    inline_calls(code)
    block = mlir.body(mlir.main_function(code))
    terms = _terms_in(block, {argument: {argument: 1.0} for argument in block.arguments})
    outputs = mlir.operands(mlir.return_operation(block))
    return frozenset(i for i, value in enumerate(outputs) if _is_updated(value, terms[value]))


def _is_updated(output: Value, terms: Terms) -> bool:
    shares = [
        abs(share)
        for term, share in terms.items()
        if not isinstance(term, str) and mlir.shape(term) == mlir.shape(output)
    ]
    return len(terms) > 1 and any(LEAST <= share <= MOST for share in shares)


def _terms_in(block: mlir.Block, known: Mapping[Value, Terms]) -> dict[Value, Terms]:
    """Those of all values of a block, beside what is known of its arguments and around it."""
    terms = dict(known)
    for op in mlir.operations(block):
        terms.update(zip(mlir.results(op), _terms_of(op, terms), strict=True))
    return terms


def _terms_of(op: Operation, terms: Mapping[Value, Terms]) -> list[Terms]:
    """Those of each result."""
    parts = [terms[value] for value in mlir.operands(op)]
    match op.name:
        case name if name in SAME:
            return parts
        case "stablehlo.add":
            return [_sum(parts[0], parts[1], 1.0)]
        case "stablehlo.subtract":
            return [_sum(parts[0], parts[1], -1.0)]
        case "stablehlo.negate":
            return [_sum({}, parts[0], -1.0)]
        case "stablehlo.multiply":
            return [_product(parts[0], parts[1])]
        case "stablehlo.divide":
            return [_product(parts[0], _inverse(parts[1]))]
        case "stablehlo.constant":
            return [_of_constant(op)]
        case name if name in HOLDS:
            return [_either(parts[HOLDS[name]])]
        case "stablehlo.scatter":
            return [_either([part, OTHERS]) for part in parts[: len(op.results)]]
        case "stablehlo.case" | "stablehlo.if":
            return _of_branches(op, terms)
        case "stablehlo.while":
            return _of_loop(op, parts, terms)
        case _:
            return [OTHERS] * len(mlir.results(op))


def _sum(one: Terms, other: Terms, sign: float) -> Terms:
    return {t: one.get(t, 0.0) + sign * other.get(t, 0.0) for t in {**one, **other}}


def _product(one: Terms, other: Terms) -> Terms:
    """What is neither a number nor an argument is one thing, as small as a learning rate is."""
    total: dict[Value | str, float] = {}
    for (a, share), (b, times) in product(one.items(), other.items()):
        term = b if a == ONE else a if b == ONE else OTHER
        total[term] = total.get(term, 0.0) + share * times
    return total


def _inverse(terms: Terms) -> Terms:
    """Of a divisor: what is neither a number nor an argument is as small beside a number as it is
    in a product.
    """
    number = terms.get(ONE, 0.0)
    if not number:
        return OTHERS
    return {ONE: 1 / number} if len(terms) == 1 else {ONE: 1 / number, OTHER: 1.0}


def _either(parts: Sequence[Terms]) -> Terms:
    """Of a value whose elements are one's or another's: the largest share of each term."""
    terms = dict.fromkeys(term for part in parts for term in part)
    return {t: max((part.get(t, 0.0) for part in parts), key=abs) for t in terms}


def _of_branches(op: Operation, terms: Mapping[Value, Terms]) -> list[Terms]:
    returned = [_returned(block, _terms_in(block, terms)) for block in mlir.blocks(op)]
    return [_either(parts) for parts in zip(*returned, strict=True)]


def _of_loop(op: Operation, initial: Sequence[Terms], terms: Mapping[Value, Terms]) -> list[Terms]:
    """Those behind one step, which has as much of what it starts from as any.

    What is the same at all steps is added as often as there are steps, as a penalty of each
    microbatch is, and a parameter is not.
    """
    body = mlir.blocks(op)[1]
    carried: list[Value] = list(body.arguments)
    passed = [a == b for a, b in zip(carried, mlir.returned(body), strict=True)]
    starts = [OTHERS if same else own for same, own in zip(passed, initial, strict=True)]
    known = {**dict.fromkeys(terms, OTHERS), **dict(zip(carried, starts, strict=True))}
    behind = _returned(body, _terms_in(body, known))
    found = zip(passed, initial, behind, strict=True)
    return [start if same else own for same, start, own in found]


def _returned(block: mlir.Block, terms: Mapping[Value, Terms]) -> list[Terms]:
    return [terms[value] for value in mlir.returned(block)]


def _of_constant(op: Operation) -> Terms:
    # The bindings cannot read complex constants.
    if mlir.is_complex(op.results[0]):
        return OTHERS
    attribute = cast(Any, op.attributes["value"])
    return {ONE: float(attribute.get_splat_value().value)} if attribute.is_splat else OTHERS
