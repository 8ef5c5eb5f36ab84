"""Scheduled HLO: a compiled module's text as computations of instructions in the order they run in.

%y = f32[4,256]{1,0:T(4,128)} negate(%x)
    =>  Instruction("y", Array("f32", (4, 256), 4096, 0), "negate", ("x",))
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hlo_surgery.targets.scheduled.shapes import Shape, parse_shape

CALLS = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
CALL_LISTS = re.compile(r"\b(branch_computations|called_computations|calls)=\{([^}]*)\}")
NAME = re.compile(r"%?([\w.\-]+)")
# What the compiler for TPU writes where it has no estimate.
UNKNOWN_CYCLES = 2**63 - 1
LINE = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")


@dataclass(frozen=True)
class Instruction:
    """One instruction. `calls`: computations by role; `text`: what stands behind the operands."""

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    argument: str
    calls: tuple[tuple[str, str], ...]
    text: str

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate, where it has one."""
        found = re.search(r'"estimated_cycles":"?(\d+)', self.text)
        return int(found[1]) if found and int(found[1]) < UNKNOWN_CYCLES else None

    def called(self, role: str) -> str | None:
        """The computation of one role."""
        return next((name for given, name in self.calls if given == role), None)


@dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they run; `root` is the one whose value is returned."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction

    @cached_property
    def named(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {each.name: each for each in self.instructions}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """By name, the instructions that take an instruction's value."""
        users: dict[str, list[Instruction]] = {}
        for each in self.instructions:
            for name in dict.fromkeys(each.operands):
                users.setdefault(name, []).append(each)
        return users

    @property
    def parameters(self) -> list[Instruction]:
        """The parameters by number."""
        return sorted(
            (i for i in self.instructions if i.opcode == "parameter"), key=lambda i: int(i.argument)
        )


@dataclass(frozen=True)
class Program:
    """A compiled module. `aliases`: the parameter in whose memory an output lies, by the output's
    tuple index.
    """

    entry: Computation
    computations: Mapping[str, Computation]
    aliases: Mapping[tuple[int, ...], int]


def parse(text: str) -> Program:
    """A program from `compiled.as_text()`. Raises ValueError where the text is no scheduled module.

    >>> program = parse('''HloModule m, is_scheduled=true
    ... ENTRY %main (x: f32[3]) -> f32[3] {
    ...   %x = f32[3]{0} parameter(0)
    ...   ROOT %y = f32[3]{0} negate(%x)
    ... }''')
    >>> [(each.opcode, each.shape.bytes) for each in program.entry.instructions]
    [('parameter', 12), ('negate', 12)]
    """
    header = text.split("\n", 1)[0]
    if not header.startswith("HloModule") or "is_scheduled=true" not in header:
        raise ValueError("this is no text of a scheduled HLO module")
    computations, entry = dict[str, Computation](), None
    for is_entry, computation in _computations(text.splitlines()[1:]):
        computations[computation.name] = computation
        entry = computation if is_entry else entry
    if entry is None:
        raise ValueError("this HLO module has no entry computation")
    return Program(entry, computations, _aliases(header))


def _computations(lines: Sequence[str]) -> Iterator[tuple[bool, Computation]]:
    head, held = "", list[str]()
    for line in lines:
        if line.endswith("{") and " -> " in line and not line.startswith(" "):
            head, held = line, []
        elif line.startswith("}") and head:
            yield head.startswith("ENTRY"), _computation(head, held)
            head = ""
        elif head and LINE.match(line):
            held.append(line)


def _computation(head: str, lines: Sequence[str]) -> Computation:
    found = NAME.match(head.removeprefix("ENTRY "))
    instructions = tuple(map(_instruction, lines))
    root = next(
        (
            i
            for i, line in zip(instructions, lines, strict=True)
            if line.lstrip().startswith("ROOT ")
        ),
        None,
    )
    if found is None or root is None:
        raise ValueError(f"this is no computation: {head}")
    return Computation(found[1], instructions, root)


def _instruction(line: str) -> Instruction:
    found = LINE.match(line)
    if found is None:
        raise ValueError(f"this is no instruction: {line}")
    rest = line[found.end() :]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    shape, (opcode, rest) = rest[:end], rest[end:].lstrip().split("(", 1)
    end = _closing(f"({rest}") - 1
    argument, text = rest[: end - 1], rest[end:]
    operands = tuple(re.findall(r"%([\w.\-]+)", argument)) if opcode != "constant" else ()
    return Instruction(
        found[2], parse_shape(shape), opcode, operands, argument, tuple(_calls(text)), text
    )


def _closing(text: str) -> int:
    """The position behind the bracket that closes the first one."""
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    raise ValueError(f"a bracket is not closed in {text[:80]}")


def _calls(text: str) -> Iterator[tuple[str, str]]:
    yield from CALLS.findall(text)
    for role, names in CALL_LISTS.findall(text):
        yield from ((role, name) for name in NAME.findall(names))


def _aliases(header: str) -> dict[tuple[int, ...], int]:
    """input_output_alias={ {0}: (1, {}, may-alias) }: output 0 lies in parameter 1."""
    found = re.search(r"input_output_alias=\{ (.*?) \}", header)
    pairs = re.findall(r"\{([\d, ]*)\}: \((\d+)", found[1]) if found else []
    return {
        tuple(int(i) for i in output.split(",") if i.strip()): int(parameter)
        for output, parameter in pairs
    }
