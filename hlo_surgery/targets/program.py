"""Scheduled HLO: a compiled module's text as computations of instructions in the order they run in.

%y = f32[4,256]{1,0:T(4,128)} negate(%x)
    =>  Instruction("y", Array("f32", (4, 256), 4096, 0), "negate", (x,))

Shapes in HLO text: tuples, and arrays with their layouts, and so their bytes and memory.

f32[4,250]{1,0:T(4,128)S(1)}   =>   Array("f32", (4, 250), 4096, 1)
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax

ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^{}]*)\})?")


@dataclass(frozen=True)
class Array:
    """An array: element type, sizes, bytes with its tiles' padding, and the memory it lies in.

    Space 0 is the device's main memory, HBM on a TPU; the others are on the chip, or the host's.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    space: int


Shape = Array | tuple["Shape", ...]


def parse_shape(text: str) -> Shape:
    """An array or a tuple of shapes.

    >>> parse_shape("bf16[3,100]{1,0:T(8,128)(2,1)S(1)}")
    Array(dtype='bf16', dims=(3, 100), bytes=2048, space=1)
    """
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if not text.startswith("("):
        return _array(text)
    parts, depth = [""], 0
    for letter in text[1:-1]:  # commas also stand within brackets
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(map(parse_shape, filter(str.strip, parts)))


def _array(text: str) -> Array:
    found = ARRAY.fullmatch(text)
    if found is None:
        return Array("token", (), 0, 0)
    dtype, sizes, layout = found[1], found[2], found[3] or ""
    dims = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
    order, _, memory = layout.partition(":")
    space = re.search(r"S\((\d+)\)", memory)
    bits = re.search(r"E\((\d+)\)", memory)
    elements = math.prod(_padded(dims, [int(d) for d in order.split(",") if d], memory))
    size = -(-elements * (int(bits[1]) if bits else _bits(dtype)) // 8)
    return Array(dtype, dims, size, int(space[1]) if space else 0)


def _padded(dims: Sequence[int], minor_to_major: Sequence[int], memory: str) -> list[int]:
    """The sizes, innermost rounded up to whole tiles: T(8,128) tiles the two innermost."""
    sizes = [dims[d] for d in minor_to_major] if minor_to_major else list(dims[::-1])
    found = re.search(r"T\(([\d,]+)\)", memory)
    tile = [int(size) for size in found[1].split(",")][::-1] if found else []
    sizes += [1] * (len(tile) - len(sizes))
    return [
        -(-size // tile[i]) * tile[i] if i < len(tile) else size for i, size in enumerate(sizes)
    ]


def arrays(shape: Shape) -> list[Array]:
    """The arrays in a shape."""
    return jax.tree.leaves(shape)


def _bits(dtype: str) -> int:
    found = re.match(r"[a-z]+?(\d+)", dtype)
    return int(found[1]) if found else 0 if dtype in ("token", "opaque") else 8


CALLS = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
CALL_LISTS = re.compile(r"\b(branch_computations|called_computations|calls)=\{([^}]*)\}")
NAME = re.compile(r"%?([\w.\-]+)")
# What the compiler for TPU writes where it has no estimate.
UNKNOWN_CYCLES = 2**63 - 1
LINE = re.compile(r"\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)")
BLOCK = re.compile(
    r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) [^\n]*-> [^\n]*\{\n(?P<body>.*?)^\}", re.M | re.S
)


@dataclass(frozen=True, eq=False, repr=False)
class Instruction:
    """One instruction. `calls`: the names of computations by role, `known` all of these;
    `text`: what stands behind the operands.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple["Instruction", ...]
    argument: str
    calls: tuple[tuple[str, str], ...]
    text: str
    known: Mapping[str, "Computation"]

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate, where it has one."""
        found = re.search(r'"estimated_cycles":"?(\d+)', self.text)
        return int(found[1]) if found and int(found[1]) < UNKNOWN_CYCLES else None

    def called(self, role: str = "calls") -> str | None:
        """The computation of one role."""
        return next((name for given, name in self.calls if given == role), None)

    def inside(self, role: str = "calls") -> "Computation":
        """What it runs."""
        return self.known[self.called(role) or self.called("to_apply") or ""]

    def option(self, name: str) -> str:
        """What stands behind `name=`, or ""."""
        found = re.search(rf"\b{name}=(\w+)", self.text)
        return found[1] if found else ""

    @property
    def index(self) -> int:
        """Of a get-tuple-element."""
        return int(self.option("index") or 0)


@dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they run; `root` is the one whose value is returned."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction

    @cached_property
    def users(self) -> dict[Instruction, list[Instruction]]:
        """The instructions that take an instruction's value."""
        users: dict[Instruction, list[Instruction]] = {}
        for each in self.instructions:
            for operand in dict.fromkeys(each.operands):
                users.setdefault(operand, []).append(each)
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
    known: dict[str, Computation] = {}
    entries = list[Computation]()
    for block in BLOCK.finditer(text):
        made = known[block["name"]] = _computation(block, known)
        entries += [made] if block["entry"] else []
    if not entries:
        raise ValueError("this HLO module has no entry computation")
    return Program(entries[-1], _aliases(header))


def _computation(block: re.Match[str], known: Mapping[str, Computation]) -> Computation:
    lines = [line for line in map(LINE.match, block["body"].splitlines()) if line]
    named: dict[str, Instruction] = {}
    for line in lines:
        named[line["name"]] = _instruction(line, named, known)
    roots = [named[line["name"]] for line in lines if line["root"]]
    if not roots:
        raise ValueError(f"the computation {block['name']} has no root")
    return Computation(block["name"], tuple(named.values()), roots[0])


def _instruction(
    line: re.Match[str], before: Mapping[str, Instruction], known: Mapping[str, Computation]
) -> Instruction:
    """`before`: those of its computation that are scheduled before it, by name."""
    rest = line["rest"]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    shape, (opcode, rest) = rest[:end], rest[end:].lstrip().split("(", 1)
    end = _closing(f"({rest}") - 1
    argument, text = rest[: end - 1], rest[end:]
    names = re.findall(r"%([\w.\-]+)", argument) if opcode != "constant" else []
    operands = tuple(before[name] for name in names)
    lists = CALL_LISTS.findall(text)
    several = [(role, name) for role, names in lists for name in NAME.findall(names)]
    calls = (*CALLS.findall(text), *several)
    made = (line["name"], parse_shape(shape), opcode, operands, argument, calls, text)
    return Instruction(*made, known)


def _closing(text: str) -> int:
    """The position behind the bracket that closes the first one."""
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    raise ValueError(f"a bracket is not closed in {text[:80]}")


def _aliases(header: str) -> dict[tuple[int, ...], int]:
    """input_output_alias={ {0}: (1, {}, may-alias) }: output 0 lies in parameter 1."""
    found = re.search(r"input_output_alias=\{ (.*?) \}", header)
    pairs = re.findall(r"\{([\d, ]*)\}: \((\d+)", found[1]) if found else []
    return {
        tuple(int(i) for i in output.split(",") if i.strip()): int(parameter)
        for output, parameter in pairs
    }
