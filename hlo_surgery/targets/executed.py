"""In place: which results of a scheduled instruction lie in the memory of one of its operands.

Executed FLOPs: what one run of an instruction of a scheduled program computes.

XLA's own total takes each loop's body once; these are to be multiplied by the runs. They are
counted as XLA counts: a multiplication and an addition are two, and exponentials and their like are
none.

Executed bytes: what one run of a scheduled instruction reads from main memory and writes there.

Each operand is read once and each result is written once; of an array that is sliced, gathered from
or updated in place, only the part. What stays on the chip, and what a fusion computes on its way,
moves nothing.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hlo_surgery.targets.program import Array, Computation, Instruction, Shape, arrays

Dims = Sequence[int]
# What writes into its first operand, and which operand it writes.
UPDATES = {"dynamic-update-slice": 1, "scatter": -1}


def in_place(instruction: Instruction) -> dict[int, int]:
    """The operand that each result is written over, both from 0; a result of none is left out.

    The compiler for TPU says so in its own words, others by an attribute, or not at all where a
    fusion ends in an update of a slice, as loops over stacked arrays do.
    """
    listed = re.search(r'"aliasing_operands":\{"lists":\[(.+?)\]\}\}', instruction.text)
    if listed:
        groups = re.findall(r"\[([^\[\]]+)\]", f"[{listed[1]}]")
        numbers = list(map(_integers, groups))
        count = len(instruction.operands)
        # Counted through operands and results; a group of operands alone says that they are one
        # buffer already.
        return {i - count: min(own) for own in numbers for i in own if i >= count > min(own)}
    given = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", instruction.text)
    if given:
        pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", given[1])
        return {int(result or 0): int(operand) for result, operand in pairs}
    if instruction.opcode in UPDATES:
        return {0: 0}
    return dict(_written(instruction.inside())) if instruction.opcode == "fusion" else {}


def _integers(text: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", text)))


def _written(fused: Computation) -> Iterator[tuple[int, int]]:
    """The parameters of a fusion that its results update."""
    for place, root in enumerate(map(origin, _results(fused))):
        if root.opcode in UPDATES:
            written = origin(root.operands[0])
            if written.opcode == "parameter":
                yield place, int(written.argument)


def _results(fused: Computation) -> Sequence[Instruction]:
    return fused.root.operands if fused.root.opcode == "tuple" else [fused.root]


def origin(instruction: Instruction) -> Instruction:
    """What makes its value, behind bitcasts."""
    while instruction.opcode == "bitcast":
        instruction = instruction.operands[0]
    return instruction


ELEMENTWISE = (
    *("abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "divide", "floor"),
    *("imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt"),
    *("real", "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left"),
    *("shift-right-arithmetic", "shift-right-logical", "sign", "subtract", "xor"),
)
REDUCTIONS = (
    *("reduce", "reduce-window", "scatter", "select-and-scatter", "all-reduce", "reduce-scatter"),
)


def flops(instruction: Instruction) -> int:
    """The FLOPs of one run; none for what a loop or a call runs, nor for custom calls but GPUs'
    contractions and convolutions.
    """
    given = [array.dims for each in instruction.operands for array in arrays(each.shape)]
    made = next((array.dims for array in arrays(instruction.shape)), ())
    elements, opcode = math.prod(made), instruction.opcode
    if opcode == "fusion":
        return _flops_inside(instruction)
    if opcode == "dot":
        return _contraction(made, given[0], _sizes(instruction.text, "lhs_contracting_dims"))
    if opcode == "convolution":
        return _convolution(instruction, given[0], given[1], made)
    if opcode in REDUCTIONS:
        once = _flops_inside(instruction) if instruction.called("to_apply") else 0
        return _applications(instruction, given, elements) * once
    if opcode == "custom-call":
        return _custom_call(instruction, given, made)
    return elements if opcode in ELEMENTWISE else 0


def _flops_inside(instruction: Instruction) -> int:
    return sum(map(flops, instruction.inside().instructions))


def call_target(instruction: Instruction) -> str:
    """What a custom call is to; "" for any other instruction."""
    found = re.search(r'custom_call_target="([^"]*)"', instruction.text)
    return found[1] if found else ""


def library(instruction: Instruction) -> str:
    """Which function of cuBLAS or cuDNN a custom call is: "__cublas$lt$matmul"; else ""."""
    name = call_target(instruction)
    return name if name.startswith(("__cublas$", "__cudnn$")) else ""


def is_fused_kernel(call: Instruction) -> bool:
    """Whether a call is to the kernel of the strategy `fused`, on a GPU."""
    return "__gpu$xla.gpu.triton" in call.text and 'name = "fused"' in call.text


def _contraction(made: Dims, left: Dims, over: Sequence[int]) -> int:
    return 2 * math.prod(made) * math.prod(left[d] for d in over)


def _custom_call(call: Instruction, given: Sequence[Dims], made: Dims) -> int:
    name = library(call)
    if is_fused_kernel(call):
        # Operands [B, positions, elements], behind the numbers of each example.
        _, left, right = given
        return 2 * math.prod(left) * right[-1]
    if name.startswith("__cublas"):
        found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', call.text)
        return _contraction(made, given[0], _integers(found[1]) if found else [])
    # Each is the convolution in which it and both its operands take part: images, windows, results.
    if "$convForward" in name or "$convBiasActivationForward" in name:
        return _convolution(call, given[0], given[1], made)
    if "$convBackwardFilter" in name:
        return _convolution(call, given[0], made, given[1])
    if "$convBackwardInput" in name:
        return _convolution(call, made, given[1], given[0])
    return 0


def _sizes(text: str, name: str) -> list[int]:
    found = re.search(rf"\b{name}=\{{?([\d,x]+)", text)
    return _integers(found[1]) if found else []


def _applications(instruction: Instruction, given: Sequence[Dims], elements: int) -> int:
    """How often a reducer is applied."""
    if instruction.opcode == "reduce":
        return math.prod(given[0]) - elements
    if instruction.opcode == "reduce-window":
        # A window as long as its axis makes running or whole sums: one step an element, however it
        # is written.
        windows = zip(_sizes(instruction.text, "size"), given[0], strict=True)
        return elements * max(1, math.prod(size for size, axis in windows if size < axis) - 1)
    return math.prod(given[-1])


def _convolution(instruction: Instruction, left: Dims, right: Dims, made: Dims) -> int:
    """As a contraction over input features and window places that meet no padding or dilation."""
    found = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.text)
    if found is None:
        return 0
    inputs, kernel, outputs = found.groups()
    groups = int(instruction.option("batch_group_count") or 1)
    places = 1
    for number, axis in enumerate(sorted(label for label in outputs if label.isdigit())):
        sizes = left[inputs.index(axis)], made[outputs.index(axis)]
        places *= _window_places(instruction.text, number, *sizes)
    channels = right[kernel.index("i")] * right[kernel.index("o")]
    return 2 * channels * left[inputs.index("b")] // groups * places


def _window_places(text: str, axis: int, size: int, outputs: int) -> int:
    """Along an axis, the pairs of output and window element that meet an element of the input."""

    def option(name: str, default: int) -> int:
        return (_sizes(text, name) or [default] * (axis + 1))[axis]

    padding = re.search(r"\bpad=([-\d_x]+)", text)
    low = int(padding[1].split("x")[axis].split("_")[0]) if padding else 0
    starts = np.arange(outputs) * option("stride", 1) - low
    dilation, places = option("lhs_dilate", 1), 0
    for element in range(option("size", 1)):
        met = starts + element * option("rhs_dilate", 1)
        places += int(((met % dilation == 0) & (met >= 0) & (met < size * dilation)).sum())
    return places


FREE = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call"),
    *("conditional", "opt-barrier", "after-all", "add-dependency", "partition-id", "replica-id"),
)
READS_PART = ("dynamic-slice", "slice", "gather")
COPIES = ("copy-start", "slice-start", "dynamic-slice-start")
MAIN = 0


def moves_nothing(instruction: Instruction) -> bool:
    """Whether it only renames, runs others, or ends what another one began."""
    return instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update"))


def moved_bytes(instruction: Instruction) -> int:
    """The bytes of one run; none for what a loop or a call runs."""
    opcode, shape = instruction.opcode, instruction.shape
    if moves_nothing(instruction):
        return 0
    if opcode in COPIES:
        target, source = copied(instruction)
        return target.bytes * [target.space, source.space].count(MAIN)
    operands = [each.shape for each in instruction.operands]
    if opcode == "fusion":
        inside = instruction.inside()
        given = zip(inside.parameters, operands, strict=True)
        read = sum(_read_inside(inside, each, operand) for each, operand in given)
        results = _results(inside)
        made = [shape] if isinstance(shape, Array) or len(results) == 1 else shape
        return read + sum(map(_made, results, made))
    if not isinstance(shape, Array):
        if opcode.endswith("-start") and opcode != "all-reduce-start":
            shape = shape[1]  # behind the operands
        elif library(instruction):
            shape = shape[:-1]  # a workspace, of which it is not known how much is used
    read = sum(_read(instruction, *each) for each in enumerate(operands))
    return read + _made(instruction, shape)


def copied(start: Instruction) -> tuple[Array, Array]:
    """The result of an asynchronous copy, and the array that it copies, or copies a part of."""
    shape: Any = start.shape
    return (shape[0], shape[1]) if start.opcode == "copy-start" else (shape[1], shape[0][0])


def _main_bytes(shape: Shape) -> int:
    return sum(array.bytes for array in arrays(shape) if array.space == MAIN)


def _part(shape: Shape) -> int:
    """The bytes of what is read or written of a larger one, wherever it lies itself."""
    return sum(array.bytes for array in arrays(shape))


def _read(reader: Instruction, place: int, operand: Shape) -> int:
    """What an instruction reads of one operand."""
    if place == 0 and reader.opcode in UPDATES:
        return 0
    whole, part = _main_bytes(operand), place == 0 and reader.opcode in READS_PART
    return min(whole, _part(reader.shape)) if part else whole


def _read_inside(fused: Computation, parameter: Instruction, operand: Shape) -> int:
    """What a fusion reads of one operand, by those that use it."""
    alike, parts = [parameter], 0
    for one in alike:
        for user in fused.users.get(one, []):
            if user.opcode == "bitcast":
                alike.append(user)
            else:
                places = [i for i, used in enumerate(user.operands) if used is one]
                parts += sum(_read(user, i, operand) for i in places)
    return min(_main_bytes(operand), parts)


def _made(instruction: Instruction, shape: Shape) -> int:
    """What is written for a result; where one is scattered into, the part is read before."""
    maker, whole = origin(instruction), _main_bytes(shape)
    if maker.opcode not in UPDATES or not whole:
        return whole
    part = _part(maker.operands[UPDATES[maker.opcode]].shape)
    return 2 * part if maker.opcode == "scatter" else part
