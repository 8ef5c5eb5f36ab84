"""Source program: a module seen by the lines of the user's source: what each computes, and which
lines it takes values from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hlo_surgery.passes.dataflow.numbers import counter_values
from hlo_surgery.passes.emit.splice import scope_of
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import source_line
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, ir
from hlo_surgery.passes.strategies.gradient_costs import bytes_of, flops_of

ENDS = ("func.return", "stablehlo.return")
# Ops that compute nothing, and are named after whatever uses them.
SILENT = ("stablehlo.constant", mlir.BARRIER)


@dataclass
class Work:
    """Ops as they stand in the module, and the FLOPs and bytes of all their runs, before XLA fuses
    any.
    """

    ops: int = 0
    flops: int = 0
    bytes: int = 0

    def add(self, op: Operation, runs: int) -> None:
        """Count an op that runs so often."""
        values = [v for v in (*op.operands, *op.results) if isinstance(v.type, ir.RankedTensorType)]
        self.ops += 1
        self.bytes += runs * sum(map(bytes_of, values))
        self.flops += runs * (flops_of(op) if values and op.name not in SILENT else 0)


@dataclass
class Line:
    """A source line: what the user's program computes there, and what was added for it.

    `sources`: the other lines that the user's ops there take values from.
    """

    where: str
    own: Work = field(default_factory=Work)
    added: Work = field(default_factory=Work)
    sources: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class SourceProgram:
    """`lines` by their names, in the order in which the program comes to them. `sites`: by an op's
    name and line, the lines that its operands come from; `unknown_loops`: those of unknown trips,
    whose bodies count once.
    """

    lines: dict[str, Line]
    sites: dict[tuple[str, str], set[str]]
    unknown_loops: int


def source_program(code: mlir.Module) -> SourceProgram:
    """A module without calls, by lines."""
    block = mlir.body(mlir.main_function(code))
    runs = dict[Operation, int]()
    unknown = _count_runs(block, 1, runs)
    lines = dict[str, Line]()
    sites = dict[tuple[str, str], set[str]]()
    origins = _Origins()
    for op, times in runs.items():
        line = lines.setdefault(source_line(op), Line(source_line(op)))
        if scope_of(op) is not None:
            line.added.add(op, times)
            continue
        line.own.add(op, times)
        taken = {where for value in op.operands for where in origins.of(value)}
        line.sources |= taken - {line.where}
        sites.setdefault((op.name, line.where), set()).update(taken)
    used = {name: line for name, line in lines.items() if line.own.ops or line.added.ops}
    return SourceProgram(used, sites, unknown)


def _count_runs(block: Block, times: int, runs: dict[Operation, int]) -> int:
    """How often each op runs, those that end a block left out; how many loops are of unknown trips.

    What reductions have within is theirs.
    """
    unknown = 0
    for op in mlir.operations(block):
        if op.name not in mlir.CONTROL_FLOW:
            runs |= {} if op.name in ENDS else {op: times}
            continue
        trips = _trips(op)
        unknown += trips is None
        for region in op.regions:
            unknown += _count_runs(region.blocks[0], times * (trips or 1), runs)
    return unknown


def _trips(op: Operation) -> int | None:
    """How often a loop runs, or None; once for a branch."""
    if op.name != "stablehlo.while":
        return 1
    counters = counter_values(op)
    return None if counters is None else len(next(iter(counters.values())))


class _Origins:
    """The lines at which values are made, through loops and branches, constants being nobody's."""

    def __init__(self) -> None:
        self._known: dict[Value, frozenset[str]] = {}

    def of(self, value: Value) -> frozenset[str]:
        """The lines of the ops that make it."""
        if value not in self._known:
            found = set[str]()
            pending, seen = [value], {value}
            while pending:
                behind = _behind(current := pending.pop())
                if behind is None:
                    op = cast(Operation, mlir.defining_operation(current))
                    found |= set() if op.name in SILENT else {source_line(op)}
                else:
                    pending += [v for v in behind if v not in seen]
                    seen.update(behind)
            self._known[value] = frozenset(found)
        return self._known[value]


def _behind(value: Value) -> Sequence[Value] | None:
    """The values that one is a new name of, as a loop's carry; None for what an op computes."""
    op = mlir.defining_operation(value)
    if op is None:
        return list(_carried(value))
    if op.name == mlir.BARRIER:
        return [op.operands[mlir.results(op).index(value)]]
    if op.name not in mlir.CONTROL_FLOW:
        return None
    number = mlir.results(op).index(value)
    ends = [mlir.return_operation(region.blocks[0]) for region in op.regions]
    ends = ends[1:] if op.name == "stablehlo.while" else ends
    return [end.operands[number] for end in ends]


def _carried(argument: Value) -> Iterator[Value]:
    """What a loop's argument is at first, and what a step makes of it."""
    block = cast(Any, argument.owner)
    loop = block.owner.operation
    if loop.name == "stablehlo.while":
        number = cast(Any, argument).arg_number
        yield loop.operands[number]
        yield mlir.return_operation(loop.regions[1].blocks[0]).operands[number]
