"""Source program: a module seen by the lines of the user's source, and what each computes."""

from dataclasses import dataclass, field

from hlo_surgery.passes.dataflow.numbers import counter_values
from hlo_surgery.passes.emit.splice import scope_of
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import source_line
from hlo_surgery.passes.ir.mlir import Block, Operation, ir
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
    """A source line: what the user's program computes there, and what was added for it."""

    where: str
    own: Work = field(default_factory=Work)
    added: Work = field(default_factory=Work)


@dataclass(frozen=True)
class SourceProgram:
    """`lines` by their names, in the order in which the program comes to them. `unknown_loops`:
    those of unknown trips, whose bodies count once.
    """

    lines: dict[str, Line]
    unknown_loops: int


def source_program(code: mlir.Module) -> SourceProgram:
    """A module without calls, by lines."""
    block = mlir.body(mlir.main_function(code))
    runs = dict[Operation, int]()
    unknown = _count_runs(block, 1, runs)
    lines = dict[str, Line]()
    for op, times in runs.items():
        line = lines.setdefault(source_line(op), Line(source_line(op)))
        (line.own if scope_of(op) is None else line.added).add(op, times)
    used = {name: line for name, line in lines.items() if line.own.ops or line.added.ops}
    return SourceProgram(used, unknown)


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
