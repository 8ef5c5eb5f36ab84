"""Bugs in what shows of a TPU kernel which examples it keeps apart."""

from tools.soundness_bugs.bug import Bug

FILE = "dataflow/mosaic_kernels.py"

KERNELS = [
    Bug(
        "normalise/devices/varying.py",
        "or is_kernel(op)",
        'or mlir.text_attribute(op, "call_target_name") == "tpu_custom_call"',
        "a kernel that may talk to other devices, called for all of them",
    ),
    Bug(
        FILE,
        "if is_parallel and _is_own(g, known)",
        "if _is_own(g, known)",
        "a grid that goes on from example to example",
    ),
    Bug(
        FILE,
        "if is_parallel and _is_own(g, known)",
        "if is_parallel",
        "blocks that rest on an example's number otherwise",
    ),
    Bug(
        FILE,
        "return once and not any(index in places for places in rest)",
        "return once",
        "blocks of another order than the grid's",
    ),
    Bug(
        FILE,
        "return once and not any(",
        "return not any(",
        "an example's place along two dimensions",
    ),
    Bug(
        FILE,
        "return (index if bound == 1 else None), reached",
        "return index, reached",
        "windows of several examples",
    ),
    Bug(
        FILE,
        'if set(said) != {"custom_call_config"} or not KNOWN.issuperset(call):',
        'if set(said) != {"custom_call_config"}:',
        "a kernel that may talk to other devices",
    ),
    Bug(
        FILE,
        "if any(i is not None and kernel.grid[i] != size for i, size in pairs):",
        "if not pairs:",
        "a grid that takes a part of the examples",
    ),
    Bug(
        FILE,
        "blocked = frozenset(range(len(sizes))) - frozenset(numbers.values())",
        "blocked = frozenset()",
        "examples along what a kernel takes as a whole",
    ),
]
