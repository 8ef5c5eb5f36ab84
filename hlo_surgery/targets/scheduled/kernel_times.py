"""Kernel times: the least time of a GPU's kernels at its peak rates, one after the other.

A kernel is what the scheduled program runs at once: a fusion, or a call of cuBLAS or cuDNN. Its
dots and convolutions run on tensor cores, at the rate of their operands' type, its other FLOPs on
CUDA cores, beside which memory is read and written: it takes as long as the longest of these.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from hlo_surgery.passes.strategies.gradient_costs import Roofline
from hlo_surgery.targets.scheduled.executed_bytes import FREE, moved_bytes
from hlo_surgery.targets.scheduled.executed_flops import flops, is_fused_kernel, library
from hlo_surgery.targets.scheduled.known_scalars import Known, known_scalars
from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program
from hlo_surgery.targets.scheduled.shapes import arrays
from hlo_surgery.targets.scheduled.trip_counts import Executed, entered, executed

Branch = Callable[[Sequence[float]], float]
NARROW = frozenset(["bf16", "f16"])


def kernels(program: Program) -> Iterator[Executed]:
    """What runs on the device by itself, with the number of runs."""
    for run in executed(program):
        if _is_kernel(run.instruction):
            yield run


def _is_kernel(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    return opcode not in FREE and not opcode.endswith(("-done", "-update"))


def seconds_at_peak(program: Program, device: Roofline, branch: Branch = max) -> float:
    """The least time of all kernels, one after the other; of a conditional that of the `branch`
    that takes longest, or least. Trip counts must be known.
    """
    entry = program.entry
    return _seconds(program, entry, [None] * len(entry.parameters), device, branch)


def _seconds(
    program: Program,
    computation: Computation,
    arguments: Sequence[Known],
    device: Roofline,
    branch: Branch,
) -> float:
    scalars, total = known_scalars(program, computation, arguments), 0.0
    for each in computation.instructions:
        if _is_kernel(each):
            total += kernel_seconds(program, computation, each, device)
        inner = [
            (rounds or 0) * _seconds(program, inside, given, device, branch)
            for inside, given, rounds in entered(program, each, scalars)
        ]
        total += branch(inner) if each.opcode == "conditional" else sum(inner)
    return total


def kernel_seconds(
    program: Program, computation: Computation, instruction: Instruction, device: Roofline
) -> float:
    """The least time of one run."""
    total = flops(program, computation, instruction)
    tensor, seconds = 0, 0.0
    for inside, each in contractions(program, computation, instruction):
        made = flops(program, inside, each)
        tensor += made
        seconds += made / contraction_rate(inside, each, device)
    moved = moved_bytes(program, computation, instruction)
    vector = (total - tensor) / device.vector_flops
    return max(seconds, vector, moved / device.bandwidth)


def contractions(
    program: Program, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """What of a kernel is left to tensor cores."""
    if instruction.opcode == "fusion":
        inside = program.computations[instruction.called("calls") or ""]
        for each in inside.instructions:
            yield from contractions(program, inside, each)
    elif (
        instruction.opcode in ("dot", "convolution")
        or library(instruction)
        or is_fused_kernel(instruction)
    ):
        yield computation, instruction


def contraction_rate(computation: Computation, dot: Instruction, device: Roofline) -> float:
    """FLOP/s by the type of the operands, and by what is asked of float32: TF32 by default, three
    of them for "high", and none for "highest", which is left to the CUDA cores.
    """
    # A fused kernel's first operand is the examples' numbers; single positions it multiplies.
    is_kernel = is_fused_kernel(dot)
    contracted = next(arrays(computation.named[dot.operands[1 if is_kernel else 0]].shape))
    if is_kernel and contracted.dims[1] == 1:
        return device.vector_flops
    dtype = contracted.dtype
    if dtype in NARROW:
        return device.rate(narrow=True)
    asked = re.search(r'operand_precision=\{(\w+)|"operand_precision":\["(\w+)"', dot.text)
    precision = (asked[1] or asked[2]).lower() if asked else "default"
    if precision == "highest" or dtype == "f64":
        return device.vector_flops
    return device.rate(narrow=False) / (3 if precision == "high" else 1)
