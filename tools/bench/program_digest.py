"""A digest of what a StableHLO module computes, whatever the order its operations are written in.

An operation's digest is of its name, attributes, types and its operands' digests; a state of a
loop has what it begins with, and then, round by round, what the body makes of it, so that the order
of states does not count either.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from hlo_surgery.passes.ir import mlir

ROUNDS = 4  # in which the states of a loop are told apart
Digests = dict[Any, str]


def digest(text: str) -> str:
    """The digest of main's results."""
    module = mlir.parse(text)
    with mlir.context():
        functions = {_name(op): op for op in _ops(module.body) if op.name == "func.func"}
        block = functions["main"].regions[0].blocks[0]
        digests: Digests = {v: _hash("argument", str(i)) for i, v in enumerate(block.arguments)}
        return _hash(*_returned(block, digests, functions))[:12]


def _returned(block: Any, digests: Digests, functions: dict[str, Any]) -> list[str]:
    """What a block returns, of what is known outside of it and of its arguments."""
    known = dict(digests)
    for op in _ops(block):
        operands = [known[v] for v in op.operands]
        if op.name.endswith(".return"):  # of func, stablehlo or sdy
            return operands
        made = _results(op, operands, known, functions)
        known.update(zip(op.results, made, strict=True))
    raise AssertionError("a block that returns nothing")


def _results(
    op: Any, operands: Sequence[str], known: Digests, functions: dict[str, Any]
) -> list[str]:
    if op.name == "stablehlo.while":
        return _looped(op, operands, known, functions)
    if op.name == "func.call":
        block = functions[str(op.attributes["callee"])[1:]].regions[0].blocks[0]
        return _returned(block, dict(zip(block.arguments, operands, strict=True)), functions)
    blocks = [block for region in op.regions for block in region.blocks]
    inside = [_hash(*_returned(b, known | _numbered(b), functions)) for b in blocks]
    whole = _hash(op.name, *_attributes(op), *_types(op), *operands, *inside)
    return [_hash(whole, str(i)) for i in range(len(op.results))]


def _looped(
    op: Any, operands: Sequence[str], known: Digests, functions: dict[str, Any]
) -> list[str]:
    states = [_hash("state", *pair) for pair in zip(operands, _types(op), strict=True)]
    condition, body = (region.blocks[0] for region in op.regions)
    for _ in range(ROUNDS):
        asked, made = (
            _returned(b, known | dict(zip(b.arguments, states, strict=True)), functions)
            for b in (condition, body)
        )
        states = [_hash(*asked, *pair) for pair in zip(states, made, strict=True)]
    whole = _hash(*sorted(states))
    return [_hash(whole, state) for state in states]


def _numbered(block: Any) -> Digests:
    return {v: _hash("inner argument", str(i), str(v.type)) for i, v in enumerate(block.arguments)}


def _attributes(op: Any) -> list[str]:
    return sorted(f"{name}={op.attributes[name]}" for name in map(_key, op.attributes))


def _key(attribute: Any) -> str:
    return attribute if isinstance(attribute, str) else attribute.name


def _types(op: Any) -> list[str]:
    return [str(result.type) for result in op.results]


def _ops(block: Any) -> list[Any]:
    return [op.operation for op in block.operations]


def _name(op: Any) -> str:
    return str(op.attributes["sym_name"]).strip('"')


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
