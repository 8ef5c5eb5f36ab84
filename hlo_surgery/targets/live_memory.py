"""Live memory: the bytes of main memory in use at each scheduled instruction, a staircase.

A buffer lives from the instruction that makes it to the last one that uses it. Instructions that
only rename (tuples, bitcasts, the ends of asynchronous ones) take none, nor do those that write in
place; what a loop carries lies where it lay before the loop. Arguments and results have memory of
their own from beginning to end.

Buffers of a scheduled program: their sizes, their memory, and from when to when they live.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hlo_surgery.targets.executed import in_place
from hlo_surgery.targets.program import Array, Computation, Instruction, Program, Shape

# A value is the number of its buffer, or a tuple of values.
Value = int | tuple["Value", ...]


@dataclass
class Buffers:
    """What a walk has met: instructions in turn, and each buffer's size, first and last step."""

    program: Program
    steps: list[str] = field(default_factory=list[str])
    sizes: list[int] = field(default_factory=list[int])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    joined: dict[int, int] = field(default_factory=dict[int, int])

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
        for buffer in map(self.find, leaves(value)):
            self.spans[buffer] = (self.spans[buffer][0], len(self.steps))

    def join(self, value: Value, other: Value) -> None:
        """Two values lie in the same memory."""
        for one, two in zip(
            map(self.find, leaves(value)), map(self.find, leaves(other)), strict=True
        ):
            if one != two:
                self.joined[two] = one
                starts, ends = zip(self.spans[one], self.spans[two], strict=True)
                self.spans[one] = (min(starts), max(ends))


def leaves(value: Value) -> Iterator[int]:
    """The buffers of a value."""
    if isinstance(value, int):
        yield value
    else:
        for part in value:
            yield from leaves(part)


RENAMES = frozenset(["bitcast", "opt-barrier", "add-dependency", "all-reduce-done"])
# Constants lie in the program's own memory.
NO_MEMORY = frozenset(["constant", "partition-id", "replica-id", "after-all"])


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
    buffers = Buffers(program)
    arguments = [buffers.make(parameter.shape) for parameter in program.entry.parameters]
    result = _walk(program.entry, arguments, buffers)
    for index, number in program.aliases.items():
        output = result
        for place in index:
            output = _element(output, place)
        buffers.join(arguments[number], output)
    for buffer in map(buffers.find, leaves((*arguments, result))):
        buffers.spans[buffer] = (0, len(buffers.steps))
    return _sums(buffers)


def _sums(buffers: Buffers) -> list[Step]:
    changes = [0] * (len(buffers.steps) + 2)
    for buffer, size in enumerate(buffers.sizes):
        if buffer not in buffers.joined:
            first, last = buffers.spans[buffer]
            changes[first] += size
            changes[last + 1] -= size
    live = list(accumulate(changes))[: len(buffers.steps)]
    return [Step(*each) for each in zip(buffers.steps, live, strict=True)]


def _walk(computation: Computation, arguments: Sequence[Value], buffers: Buffers) -> Value:
    """Run through a computation; its arguments are where they lie outside."""
    values = {p.name: value for p, value in zip(computation.parameters, arguments, strict=True)}
    for instruction in computation.instructions:
        if instruction.opcode != "parameter":
            values[instruction.name] = _run(
                instruction, [values[name] for name in instruction.operands], buffers
            )
        buffers.steps.append(instruction.name)
    return values[computation.root.name]


def _run(instruction: Instruction, operands: Sequence[Value], buffers: Buffers) -> Value:
    renamed = _renamed(instruction, operands)
    if renamed is not None:
        return renamed
    for operand in operands:
        buffers.use(operand)
    match instruction.opcode:
        case "while":
            return _loop(instruction, operands[0], buffers)
        case "call":
            return _walk(_called(instruction, "to_apply", buffers), operands, buffers)
        case "conditional":
            return _branches(instruction, operands[1:], buffers)
        case opcode if opcode.endswith(("-start", "-update")) and opcode != "all-reduce-start":
            return _start(instruction, operands, buffers)
        case _:
            return _made(instruction, operands, buffers)


def _renamed(instruction: Instruction, operands: Sequence[Value]) -> Value | None:
    """The value of an instruction that makes none, else None."""
    opcode = instruction.opcode
    if opcode == "tuple":
        return tuple(operands)
    if opcode == "get-tuple-element":
        found = re.search(r"index=(\d+)", instruction.text)
        return _element(operands[0], int(found[1]) if found else 0)
    if opcode in RENAMES or (opcode.endswith("-update") and len(operands) == 1):
        return operands[0]
    if opcode.endswith("-done"):
        return _element(operands[0], 0 if opcode == "copy-done" else 1)
    return None


def _element(value: Value, index: int) -> Value:
    return value if isinstance(value, int) else value[index]


def _called(instruction: Instruction, role: str, buffers: Buffers) -> Computation:
    return buffers.program.computations[instruction.called(role) or ""]


def _loop(instruction: Instruction, carried: Value, buffers: Buffers) -> Value:
    _walk(_called(instruction, "condition", buffers), [carried], buffers)
    result = _walk(_called(instruction, "body", buffers), [carried], buffers)
    buffers.use(result)
    buffers.join(carried, result)
    return carried


def _branches(instruction: Instruction, operands: Sequence[Value], buffers: Buffers) -> Value:
    made = buffers.make(instruction.shape)
    names = [
        name for role, name in instruction.calls if role.endswith(("computation", "computations"))
    ]
    for name, operand in zip(names, operands, strict=True):
        buffers.join(made, _walk(buffers.program.computations[name], [operand], buffers))
    return made


def _start(instruction: Instruction, operands: Sequence[Value], buffers: Buffers) -> Value:
    """An asynchronous start returns its operands as well, the copy's behind its result.

    One that takes its operands later (an update) begins with the start that it continues.
    """
    made = buffers.make(instruction.shape)
    given = operands[1:] if instruction.opcode.endswith("-update") else operands
    place = 1 if instruction.opcode == "copy-start" else 0
    passed = _element(made, place)
    buffers.join(given[0] if isinstance(passed, int) else tuple(given), passed)
    return made


def _made(instruction: Instruction, operands: Sequence[Value], buffers: Buffers) -> Value:
    made = buffers.make(instruction.shape, instruction.opcode not in NO_MEMORY)
    results = list(leaves(made))
    for result, operand in in_place(instruction, buffers.program).items():
        one, two = results[result], operands[operand]
        if isinstance(two, int) and buffers.sizes[one] == buffers.sizes[buffers.find(two)]:
            buffers.join(two, one)
    return made
