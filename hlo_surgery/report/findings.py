"""Findings: all that a page tells of a module and a request.

Additions: the ops that a rewriting has added to a module, by what they are for.
"""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from hlo_surgery.module import Module
from hlo_surgery.passes.emit.splice import Scope, scope_of
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, source_line
from hlo_surgery.passes.ir.mlir import Operation, ir
from hlo_surgery.passes.strategies import choice
from hlo_surgery.plan import Plan
from hlo_surgery.report.source_program import SourceProgram
from hlo_surgery.targets.costs import Cost
from hlo_surgery.wording import bare

# What a strategy or stage does, for those who have not read of it.
WORDS = {
    **choice.WORDS,
    "combine": "the statistic, from what was made of all gradients",
    "hoist": "a contraction of all steps of a loop at once, behind it, in place of its own",
    "stack": "what the steps of a loop make, put together",
    "microbatches": "what the steps of a loop over parts of the batch make, joined",
    "padding": "which examples are real, and how many",
}


@dataclass(frozen=True)
class Added:
    """An op: its name, the user's source line that it stands for, its MLIR with all within it."""

    op: str
    where: str
    mlir: str


@dataclass(frozen=True)
class Addition:
    """All ops that were added for one purpose, in the order of the program."""

    scope: Scope
    ops: tuple[Added, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's source lines, each once."""
        return tuple(dict.fromkeys(op.where for op in self.ops))

    @property
    def words(self) -> str:
        """What the ops do: 'the contraction once more ...'; "" for a strategy without words."""
        return WORDS.get(self.scope.strategy, "")

    @property
    def counts(self) -> str:
        """How many of each kind, the most frequent first: "2 multiply, 1 reduce"."""
        kinds = Counter(bare(op.op) for op in self.ops)
        return ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())


def additions(module: Module) -> tuple[Addition, ...]:
    """What a rewriting has added; none for a module that was not rewritten, or has lost its
    locations.

    >>> from hlo_surgery.modules import load
    >>> source = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {"
    >>> source += ' %y = stablehlo.sine %x : tensor<3xf32> loc("hlo_surgery/variance/w/lift")'
    >>> source += " return %y : tensor<3xf32> }"
    >>> [(str(each.scope), each.counts) for each in additions(load(source))]
    [('hlo_surgery/variance/w/lift', '1 sine')]
    """
    state = cast(Any, ir).AsmState(module.code.operation)
    found: dict[Scope, list[Added]] = {}
    for op, scope in _added(module.code.operation):
        found.setdefault(scope, []).append(Added(op.name, source_line(op), _text(op, state)))
    return tuple(Addition(scope, tuple(ops)) for scope, ops in found.items())


def _added(top: Operation) -> list[tuple[Operation, Scope]]:
    """The added ops, those within another with it."""
    found: list[tuple[Operation, Scope]] = []
    for region in top.regions:
        for op in (op for block in region.blocks for op in mlir.operations(block)):
            scope = scope_of(op)
            if scope is None:
                found += _added(op)
            else:
                found.append((op, scope))
    return found


def _text(op: Operation, state: Any) -> str:
    written = io.StringIO()
    cast(Any, op).print(state, file=written)
    return written.getvalue()


@dataclass(frozen=True)
class Findings:
    """`plan` is that of the gradients that are not `refused`, None where there is none; these are
    reasons by output. `costs`: of the original and the rewritten module on a target, or `no_costs`
    says why not.
    """

    original: SourceProgram
    rewritten: SourceProgram | None
    plan: Plan | None
    refused: Mapping[str, Reason]
    additions: tuple[Addition, ...]
    costs: Mapping[str, Cost]
    no_costs: str


def by_reason(refused: Mapping[str, Reason]) -> dict[Reason, list[str]]:
    """The outputs that are refused, by the reason."""
    names: dict[Reason, list[str]] = {}
    for name, reason in refused.items():
        names.setdefault(reason, []).append(name)
    return names
