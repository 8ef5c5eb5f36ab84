"""Live memory: the bytes of main memory in use at each scheduled instruction, a staircase.

A buffer lives from the instruction that makes it to the last one that uses it. Instructions that
only rename (tuples, bitcasts, the ends of asynchronous ones) take none, nor do those that write in
place; what a loop carries lies where it lay before the loop. Arguments and results have memory of
their own from beginning to end.

Buffers of a scheduled program: their sizes, their memory, and from when to when they live.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import jax

from hlo_surgery.targets.executed import in_place
from hlo_surgery.targets.program import Array, Computation, Instruction, Program, Shape

# A value is the number of its buffer, or a tuple of values.
Value = int | tuple["Value", ...]
RENAMES = ("bitcast", "opt-barrier", "add-dependency", "all-reduce-done")
# Constants lie in the program's own memory.
NO_MEMORY = ("constant", "partition-id", "replica-id", "after-all")


@dataclass(frozen=True)
class Step:
    """An instruction and the bytes that are live while it runs."""

    instruction: str
    bytes: int


def staircase(program: Program) -> list[Step]:
    """The live bytes at each instruction, each loop's body once.

    >>> from hlo_surgery.targets.program import parse
    >>> program = parse('''HloModule m, is_scheduled=true
    ... ENTRY %main (x: f32[3]) -> f32[3] {
    ...   %x = f32[3]{0} parameter(0)
    ...   %y = f32[3]{0} negate(%x)
    ...   ROOT %z = f32[3]{0} cosine(%y)
    ... }''')
    >>> [(step.instruction, step.bytes) for step in staircase(program)]
    [('x', 24), ('y', 36), ('z', 36)]
    """
    walk = _Walk()
    arguments = [walk.make(parameter.shape) for parameter in program.entry.parameters]
    result = walk.through(program.entry, arguments)
    for index, number in program.aliases.items():
        output = result
        for place in index:
            output = _element(output, place)
        walk.join(arguments[number], output)
    for buffer in map(walk.find, jax.tree.leaves((*arguments, result))):
        walk.spans[buffer] = (0, len(walk.steps))
    return walk.sums()


def highest(steps: Sequence[Step], columns: int) -> list[int]:
    """The most that is live in each of so many equal parts of a program, or at each step.

    >>> highest([Step("a", 8), Step("b", 16), Step("c", 4)], 2)
    [8, 16]
    """
    columns = min(columns, len(steps))
    edges = [len(steps) * column // columns for column in range(columns + 1)]
    return [max(step.bytes for step in steps[a:b]) for a, b in pairwise(edges)]


def _element(value: Value, index: int) -> Value:
    return value if isinstance(value, int) else value[index]


class _Walk:
    """What was met: instructions in turn, and each buffer's size, first and last step."""

    def __init__(self) -> None:
        self.steps, self.sizes = list[str](), list[int]()
        self.spans, self.joined = list[tuple[int, int]](), dict[int, int]()

    def make(self, shape: Shape, held: bool = True) -> Value:
        """New buffers for a shape; none in main memory if on the chip, or not `held`."""
        if not isinstance(shape, Array):
            return tuple(self.make(part, held) for part in shape)
        self.sizes.append(shape.bytes if held and shape.space == 0 else 0)
        self.spans.append((len(self.steps), len(self.steps)))
        return len(self.sizes) - 1

    def find(self, buffer: int) -> int:
        """The buffer that stands for all those in the same memory."""
        while buffer in self.joined:
            buffer = self.joined[buffer]
        return buffer

    def use(self, value: Value) -> None:
        """The value is live at this step."""
        for buffer in map(self.find, jax.tree.leaves(value)):
            self.spans[buffer] = (self.spans[buffer][0], len(self.steps))

    def join(self, value: Value, other: Value) -> Value:
        """Two values lie in the same memory."""
        for pair in zip(jax.tree.leaves(value), jax.tree.leaves(other), strict=True):
            one, two = map(self.find, pair)
            if one != two:
                self.joined[two] = one
                starts, ends = zip(self.spans[one], self.spans[two], strict=True)
                self.spans[one] = (min(starts), max(ends))
        return value

    def sums(self) -> list[Step]:
        """What is live at each step."""
        changes = [0] * (len(self.steps) + 2)
        for buffer, (size, span) in enumerate(zip(self.sizes, self.spans, strict=True)):
            if buffer not in self.joined:
                changes[span[0]] += size
                changes[span[1] + 1] -= size
        return [Step(*each) for each in zip(self.steps, accumulate(changes), strict=False)]

    def through(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        """Run through a computation; its arguments are where they lie outside."""
        values = dict(zip(computation.parameters, arguments, strict=True))
        for each in computation.instructions:
            if each.opcode != "parameter":
                operands = [values[operand] for operand in each.operands]
                renamed = _renamed(each, operands)
                values[each] = self._run(each, operands) if renamed is None else renamed
            self.steps.append(each.name)
        return values[computation.root]

    def _run(self, instruction: Instruction, operands: Sequence[Value]) -> Value:
        opcode = instruction.opcode
        for operand in operands:
            self.use(operand)
        if opcode == "while":
            self.through(instruction.inside("condition"), operands)
            result = self.through(instruction.inside("body"), operands)
            self.use(result)
            return self.join(operands[0], result)
        if opcode == "call":
            return self.through(instruction.inside(), operands)
        made = self.make(instruction.shape, opcode not in NO_MEMORY)
        if opcode == "conditional":
            names = [
                n for role, n in instruction.calls if role.endswith(("computation", "computations"))
            ]
            for name, operand in zip(names, operands[1:], strict=True):
                self.join(made, self.through(instruction.known[name], [operand]))
        elif opcode.endswith(("-start", "-update")) and opcode != "all-reduce-start":
            # It returns its operands as well, a copy's behind its result. One that takes them later
            # (an update) begins with the start that it continues.
            given = operands[1:] if opcode.endswith("-update") else operands
            passed = _element(made, 1 if opcode == "copy-start" else 0)
            self.join(given[0] if isinstance(passed, int) else tuple(given), passed)
        else:
            self._write_in_place(instruction, operands, jax.tree.leaves(made))
        return made

    def _write_in_place(
        self, instruction: Instruction, operands: Sequence[Value], results: Sequence[int]
    ) -> None:
        for result, operand in in_place(instruction).items():
            one, two = results[result], operands[operand]
            if isinstance(two, int) and self.sizes[one] == self.sizes[self.find(two)]:
                self.join(two, one)


def _renamed(instruction: Instruction, operands: Sequence[Value]) -> Value | None:
    """The value of an instruction that makes none, else None."""
    opcode = instruction.opcode
    if opcode == "tuple":
        return tuple(operands)
    if opcode == "get-tuple-element":
        return _element(operands[0], instruction.index)
    if opcode in RENAMES or (opcode.endswith("-update") and len(operands) == 1):
        return operands[0]
    if opcode.endswith("-done"):
        return _element(operands[0], 0 if opcode == "copy-done" else 1)
    return None
