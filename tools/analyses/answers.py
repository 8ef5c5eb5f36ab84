"""Answers: what each of two analyses says of a module's gradients, and how long it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hlo_surgery.passes.example_axes.example_axes import find_example_axes

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Value, func
from hlo_surgery.passes.owners.alignment.example_rows import example_rows
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.verdicts import undivided_reason
from hlo_surgery.rewriting import pipeline
from tools.analyses.cases import Case, flat


@dataclass(frozen=True)
class Answer:
    """`reasons`: why each output is refused, None where it is not; `data`: the lines of what was
    taken as a constant; `seconds`: of the analysis alone.
    """

    reasons: tuple[Reason | None, ...]
    data: frozenset[str]
    seconds: float

    @property
    def accepts(self) -> bool:
        """Whether no output is refused."""
        return not any(self.reasons)

    @property
    def why(self) -> str:
        """The first reason, with its line."""
        first = next((r for r in self.reasons if r), None)
        return f"{first.why} | {first.op} at {first.where}" if first else ""


@dataclass(frozen=True)
class Pair:
    """What both say of one case; `ops`: how many it has."""

    case: Case
    old: Answer
    new: Answer
    ops: int

    @property
    def kind(self) -> str:
        """Whether they agree, and who accepts."""
        if self.old.accepts != self.new.accepts:
            return "only the new accepts" if self.new.accepts else "only the old accepts"
        if not self.old.accepts:
            return "both refuse"
        return "both accept" if self.old.data == self.new.data else "accept, other constants"


def asked(case: Case) -> Pair:
    """Both answers on a case."""
    code = flat(case)
    main = mlir.main_function(code)
    sharding_rules.populate(code)
    returned = mlir.operands(mlir.return_operation(mlir.body(main)))
    outputs = [returned[number] for number in case.outputs]
    ops = sum(1 for _ in mlir.nested_operations(main.operation))
    return Pair(case, _old(main, case, outputs), _new(main, case, outputs), ops)


def _old(main: func.FuncOp, case: Case, outputs: Sequence[Value]) -> Answer:
    start = time.perf_counter()
    axes = find_example_axes(main, dict(case.batch), case.size, case.outputs, case.contribution)
    seconds = time.perf_counter() - start
    block = mlir.body(main)

    def reason(value: Value) -> Reason | None:
        return pipeline._mixing(axes, value) or example_rows(axes, block, value)  # pyright: ignore[reportPrivateUsage]

    return _answer(case, outputs, reason, axes.data, seconds)


def _new(main: func.FuncOp, case: Case, outputs: Sequence[Value]) -> Answer:
    start = time.perf_counter()
    owners = find_owners(main, dict(case.batch), case.size, case.outputs)
    seconds = time.perf_counter() - start
    block = mlir.body(main)

    def reason(value: Value) -> Reason | None:
        return undivided_reason(owners, block, value)

    return _answer(case, outputs, reason, owners.data, seconds)


def _answer(
    case: Case,
    outputs: Sequence[Value],
    reason: Callable[[Value], Reason | None],
    data: dict[Value, Any],
    seconds: float,
) -> Answer:
    reasons = tuple(reason(v) if case.size > 1 else None for v in outputs)
    behind = ancestors(list(outputs))
    lines = frozenset(f"{r.op} at {r.where}" for v, r in data.items() if v in behind)
    return Answer(reasons, lines, seconds)
