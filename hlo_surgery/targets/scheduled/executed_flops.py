"""Executed FLOPs: what one run of an instruction of a scheduled program computes.

XLA's own total takes each loop's body once; these are to be multiplied by the runs. They are
counted as XLA counts: a multiplication and an addition are two, and exponentials and their like are
none.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program
from hlo_surgery.targets.scheduled.shapes import Array, arrays

ELEMENTWISE = (
    *(
        "abs",
        "add",
        "and",
        "ceil",
        "clamp",
        "compare",
        "complex",
        "convert",
        "divide",
        "floor",
        "imag",
        "is-finite",
    ),
    *(
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "popcnt",
        "real",
        "remainder",
        "round-nearest-afz",
    ),
    *(
        "round-nearest-even",
        "select",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
    ),
    *("subtract", "xor"),
)


def flops(program: Program, computation: Computation, instruction: Instruction) -> int:
    """The FLOPs of one run; none for what a loop or a call runs, nor for custom calls but GPUs'
    contractions and convolutions.
    """
    operands = [computation.named[name].shape for name in instruction.operands]
    given = [array for shape in operands for array in arrays(shape)]
    made = next(arrays(instruction.shape), None)
    match instruction.opcode:
        case "fusion":
            inside = program.computations[instruction.called("calls") or ""]
            return sum(flops(program, inside, each) for each in inside.instructions)
        case "dot":
            return 2 * _elements(made) * _contracted(instruction, given[0])
        case "convolution":
            return _convolution(instruction, given[0], given[1], made)
        case (
            "reduce"
            | "reduce-window"
            | "scatter"
            | "select-and-scatter"
            | "all-reduce"
            | "reduce-scatter"
        ):
            return _applications(instruction, given, made) * _reducer(program, instruction)
        case "custom-call" if is_fused_kernel(instruction):
            return _fused_kernel(given)
        case "custom-call":
            return _library_call(instruction, given, made)
        case opcode:
            return _elements(made) if opcode in ELEMENTWISE else 0


def library(instruction: Instruction) -> str:
    """Which function of cuBLAS or cuDNN a custom call is: "__cublas$lt$matmul"; else ""."""
    found = re.search(r'custom_call_target="(__cu(?:blas|dnn)\$[^"]*)"', instruction.text)
    return found[1] if found else ""


def is_fused_kernel(call: Instruction) -> bool:
    """Whether a call is to the kernel of the strategy `fused`, on a GPU."""
    return "__gpu$xla.gpu.triton" in call.text and 'name = "fused"' in call.text


def _fused_kernel(given: Sequence[Array]) -> int:
    """Of operands [B, positions, elements], behind the numbers of each example."""
    _, left, right = given
    return 2 * math.prod(left.dims) * right.dims[-1]


def _library_call(call: Instruction, given: Sequence[Array], made: Array | None) -> int:
    name = library(call)
    if name.startswith("__cublas"):
        found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', call.text)
        over = [int(d) for d in re.findall(r"\d+", found[1])] if found else []
        return 2 * _elements(made) * math.prod(given[0].dims[d] for d in over)
    if "$convForward" in name or "$convBiasActivationForward" in name:
        return _convolution(call, given[0], given[1], made)
    # Each is the convolution in which it and both its operands take part: images, windows, results.
    if "$convBackwardFilter" in name and made:
        return _convolution(call, given[0], made, given[1])
    if "$convBackwardInput" in name and made:
        return _convolution(call, made, given[1], given[0])
    return 0


def _elements(array: Array | None) -> int:
    return math.prod(array.dims) if array else 0


def _sizes(text: str, name: str) -> list[int]:
    found = re.search(rf"\b{name}=\{{?([\d,x]+)", text)
    return [int(size) for size in re.split("[,x]", found[1]) if size] if found else []


def _contracted(dot: Instruction, left: Array) -> int:
    return math.prod(left.dims[d] for d in _sizes(dot.text, "lhs_contracting_dims"))


def _reducer(program: Program, instruction: Instruction) -> int:
    """The FLOPs of one application of the reducer."""
    inside = program.computations.get(instruction.called("to_apply") or "")
    return sum(flops(program, inside, each) for each in inside.instructions) if inside else 0


def _applications(instruction: Instruction, given: Sequence[Array], made: Array | None) -> int:
    """How often a reducer is applied."""
    if instruction.opcode == "reduce":
        return _elements(given[0]) - _elements(made)
    if instruction.opcode == "reduce-window":
        # A window as long as its axis makes running or whole sums: one step an element, however it
        # is written.
        windows = zip(_sizes(instruction.text, "size"), given[0].dims, strict=True)
        return _elements(made) * max(
            1, math.prod(size for size, axis in windows if size < axis) - 1
        )
    return _elements(given[-1])


def _convolution(instruction: Instruction, left: Array, right: Array, made: Array | None) -> int:
    """As a contraction over input features and window places that meet no padding or dilation."""
    found = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.text)
    if found is None or made is None:
        return 0
    inputs, kernel, outputs = found.groups()
    groups = (_sizes(instruction.text, "batch_group_count") or [1])[0]
    places = 1
    for number, axis in enumerate(sorted(label for label in outputs if label.isdigit())):
        sizes = left.dims[inputs.index(axis)], made.dims[outputs.index(axis)]
        places *= _window_places(instruction.text, number, *sizes)
    channels = right.dims[kernel.index("i")] * right.dims[kernel.index("o")]
    return 2 * channels * left.dims[inputs.index("b")] // groups * places


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
