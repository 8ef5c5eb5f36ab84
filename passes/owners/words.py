"""Words: classes of owners in the words of passes/example_axes, for what asks only roughly.

Whether a value has examples in it, is a sum of them, or is shared by all: more is not said here.
"""

from hlo_surgery.passes.example_axes import lattice
from hlo_surgery.passes.example_axes.loop_steps import varies
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Class, Crossed, Mixed, Owned, Owners, Summed

CROSSED = Reason("values of several examples meet, each by a place of its own", "", "")


class Words(lattice.Axes):
    """Owners that answer as `Axes`."""

    def __init__(self, owners: Owners) -> None:
        super().__init__(owners.size)
        self.owners = owners
        self.trained, self.part_loops = owners.trained, owners.part_loops
        self.varying, self.aligned = owners.varying, owners.beside
        self.moved = owners.moved

    def of(self, value: Value) -> lattice.Class:
        """The class of a value."""
        return worded(self.owners.of(value))

    def at(self, op: Operation) -> list[lattice.Class]:
        """The classes of an op's operands as the op took them."""
        return [worded(known) for known in self.owners.at(op)]


def worded(known: Class) -> lattice.Class:
    """One class in these words."""
    match known:
        case Owned(labels, data):
            return lattice.Shared(data) if labels.is_nobodys else lattice.PerExample(0)
        case Summed(site, data):
            return lattice.Summed(site, data)
        case Mixed(reason, unknown):
            return lattice.Mixed(reason, unknown)
        case Crossed():
            return lattice.Mixed(CROSSED, unknown=True)


def varies_by_step(owners: Owners, loop: Operation, value: Value) -> bool:
    """Whether a value may differ from one step of a loop to another."""
    return varies(Words(owners), loop, value)
