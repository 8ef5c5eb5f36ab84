"""Mosaic kernels: the dimensions that a TPU kernel takes an index at a time, each on its own.

    custom_call @tpu_custom_call(%q : 4x8x128) : 4x8x128
        grid (b, t) of 4x2, windows of 1x4x128 at (b, t, 0)      =>   ([b, _, _]) -> ([b, _, _])

The kernel's body lies in the call, with the map from its grid to the block of each operand and
result. A dimension of the grid that goes unchanged into a dimension of windows of one takes what
lies there index by index: no iteration sees what another is given, or makes, if the dimension is
declared to be parallel, as one is that `vmap` adds.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, cast

from hlo_surgery.passes.dataflow.kernels import Rule, rule_along
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Shape, closure

TARGET = "tpu_custom_call"
# Of a call for several devices at once: the mesh axes along each dimension in front.
OVER_DEVICES = "over_devices"
# Of memory where a window of an operand lies; what lies elsewhere a kernel can reach as a whole.
WINDOWED = ("#tpu.memory_space<vmem>", "#tpu.memory_space<smem>")
PARALLEL = "#tpu.dimension_semantics<parallel>"
# What a call may say of its kernel; with anything else, as of devices that it talks to, nothing is
# known of it.
KNOWN = frozenset(
    [
        "body",
        "allow_input_fusion",
        "cost_estimate",
        "debug_locations",
        "flags",
        "internal_scratch_in_bytes",
        "needs_hlo_passes",
        "needs_layout_passes",
        "scoped_memory_configs",
        "serialization_format",
        "vmem_limit_bytes",
    ]
)
# What a kernel's function says of it.
SAID = frozenset(["dimension_semantics", "window_params", "scalar_prefetch"])

# For each dimension of an array, the dimension of the grid that is its index; None for another.
Indices = tuple[int | None, ...]


@dataclass(frozen=True)
class Kernel:
    """A grid, how many operands are whole in front of the windows, and the windows' indices."""

    grid: Shape
    whole: int
    windows: tuple[Indices, ...]


def is_kernel(op: Operation) -> bool:
    """Whether the op is a call to a TPU kernel."""
    return mlir.text_attribute(op, "call_target_name") == TARGET


def is_known_kernel(op: Operation) -> bool:
    """Whether the op is a call to a kernel that says of itself no more than is known."""
    return is_kernel(op) and _kernel(mlir.text_attribute(op, "backend_config")) is not None


def leading(op: Operation) -> int:
    """How many dimensions in front are those of devices, each with a kernel to itself."""
    return len(mlir.entries(op, OVER_DEVICES))


def kernel_rule(op: Operation) -> Rule | None:
    """How the operands and results of a call to a kernel share dimensions; None for another op, or
    where the kernel does not show it.
    """
    if not is_kernel(op):
        return None
    kernel = _kernel(mlir.text_attribute(op, "backend_config"))
    if kernel is None:
        return None
    shapes = [mlir.shape(v)[leading(op) :] for v in (*op.operands, *op.results)]
    rows: list[Indices] = [(None,) * len(shape) for shape in shapes[: kernel.whole]]
    rows += kernel.windows
    if [*map(len, rows)] != [*map(len, shapes)]:
        return None
    pairs = zip(chain(*rows), chain(*shapes), strict=True)
    if any(i is not None and kernel.grid[i] != size for i, size in pairs):
        return None
    # Devices are told apart as by a grid, whose indices are counted below zero.
    devices = tuple(range(-leading(op), 0))
    whole = [(*devices, *row) for row in rows]
    indices = dict.fromkeys(i for row in whole for i in row if i is not None)
    return rule_along(op, [tuple(r.index(i) if i in r else None for r in whole) for i in indices])


@lru_cache(maxsize=256)
def _kernel(config: str) -> Kernel | None:
    """The kernel in the configuration of a call; None where it is not all known."""
    try:
        said: Any = json.loads(config)
        call = said["custom_call_config"]
        body = base64.b64decode(call["body"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
    if set(said) != {"custom_call_config"} or not KNOWN.issuperset(call):
        return None
    module = mlir.parse_kernel(body)
    functions = [] if module is None else [op.operation for op in module.body.operations]
    named = {mlir.text_attribute(f, "sym_name"): f for f in functions}
    entries = [f for f in functions if "iteration_bounds" in f.attributes]
    return _of_function(entries[0], named) if len(entries) == 1 else None


def _of_function(entry: Operation, functions: dict[str, Operation]) -> Kernel | None:
    """The kernel of a function, whose arguments are the grid's indices, then what it is given."""
    said: dict[str, Any] = {**mlir.attributes(entry)}
    if not SAID.issubset(said):
        return None
    grid, windows = tuple(said["iteration_bounds"]), list(said["window_params"])
    parallel = [str(a) == PARALLEL for a in said["dimension_semantics"]]
    whole = int(said["scalar_prefetch"].value)
    arguments = list(mlir.body(cast(Any, entry)).arguments)[len(grid) :]
    if not all(any(where in str(v.type) for where in WINDOWED) for v in arguments):
        return None
    found = [_window(w, functions, grid) for w in windows]
    known = [row for row in found if row is not None]
    if len(known) != len(windows):
        return None
    own = [g for g in range(len(grid)) if parallel[g] and _is_own(g, known)]
    kept = [tuple(i if i in own else None for i, _ in row) for row in known]
    return Kernel(grid, whole, tuple(kept))


# Of a dimension: the index of the grid that it is, and all that its block rests on.
Place = tuple[int | None, frozenset[int]]


def _is_own(index: int, windows: Sequence[Sequence[Place]]) -> bool:
    """Whether an index of the grid is nothing in any window but the index of one dimension."""
    rest = [places for row in windows for i, places in row if i != index]
    once = all(sum(i == index for i, _ in row) <= 1 for row in windows)
    return once and not any(index in places for places in rest)


def _window(
    params: Any, functions: dict[str, Operation], grid: Sequence[int]
) -> tuple[Place, ...] | None:
    """For each dimension of an operand or result, where its block lies."""
    names = {a if isinstance(a, str) else a.name for a in params}
    if names - {"pipeline_mode"} != {"transform_indices", "window_bounds"}:
        return None
    transform = functions.get(str(params["transform_indices"]).strip("@"))
    bounds = list(params["window_bounds"])
    if transform is None:
        return None
    block = transform.regions[0].blocks[0]
    results = list(list(block.operations)[-1].operation.operands)
    if len(results) != len(bounds):
        return None
    return tuple(
        _place(block, value, bound, len(grid)) for value, bound in zip(results, bounds, strict=True)
    )


def _place(block: Any, value: Any, bound: int, indices: int) -> Place:
    arguments = list(block.arguments)[:indices]
    behind = closure([value], mlir.made_of)
    reached = frozenset(i for i, a in enumerate(arguments) if a in behind)
    index = next((i for i, a in enumerate(arguments) if a == value), None)
    return (index if bound == 1 else None), reached
