"""Cases: gradient modules, with which arguments carry examples, from everywhere that has some."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tests.claim_rows import PER_EXAMPLE, SHARED, SUMMED, TRAPS, UNTOLD
from tests.test_claims import source

from hlo_surgery.module import load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from tests import program_strategies as strategies
from tests.data_moves import MEETINGS, MOVES, B, W, X
from tests.random_programs import data, gradient, in_axes, parameters

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Case:
    """`text`: the module, flat or not; `batch`: axis of the examples by argument; `outputs`: the
    numbers of the gradients; `arrays`: its arguments, where they are known.
    """

    origin: str
    name: str
    text: str
    batch: dict[int, int]
    size: int
    outputs: list[int]
    arrays: list[np.ndarray] = field(default_factory=list)
    contribution: bool = False


def flat(case: Case) -> mlir.Module:
    """The module as the analyses take it."""
    code = mlir.clone(load(case.text).code)
    normalize(code)
    return code


def moves() -> Iterator[Case]:
    """Programs that move examples, and some in which they meet."""
    for origin, table in {"moves": MOVES, "meetings": MEETINGS}.items():
        for name, loss in table.items():
            text = jax.jit(jax.grad(loss), keep_unused=True).lower(W, X).as_text(debug_info=True)
            yield Case(origin, name, text, {1: 0}, B, [0], [W, X])


def claims() -> Iterator[Case]:
    """The small functions that claims are tested on; their last value is the gradient."""
    tables = {
        "per example": PER_EXAMPLE,
        "summed": SUMMED,
        "shared": SHARED,
        "traps": TRAPS,
        "untold": UNTOLD,
    }
    for kind, rows in tables.items():
        for name, row in rows.items():
            code = mlir.parse(source(row))
            main = mlir.main_function(code)
            block = mlir.body(main)
            last = mlir.operations(block)[-2].results[-1]
            axes = {i + 1: axis for i, axis in row.axes.items()}
            first, axis = next(iter(axes.items()))
            size = mlir.shape(block.arguments[first])[axis]
            mlir.set_results(main, [last], [])
            yield Case(f"claims: {kind}", name, mlir.to_text(code), axes, size, [0])


def folder(path: Path, module: str, along: str) -> Iterator[Case]:
    """Modules in folders of their own, each with a meta.json. `along`: its word for the axis of the
    examples in an argument.
    """
    for meta_file in sorted(path.glob("*/meta.json")):
        meta = json.loads(meta_file.read_text())
        axes = {i: a[along] for i, a in enumerate(meta["arguments"]) if a[along] is not None}
        arrays = np.load(meta_file.parent / "inputs.npz")
        yield Case(
            path.name,
            f"{meta_file.parent.name} ({meta['verdict']})",
            (meta_file.parent / module).read_text(),
            axes,
            meta["batch_size"],
            list(range(len(meta["gradients"]))),
            [arrays[f"arg{i}"] for i in range(len(meta["arguments"]))],
        )


def fixtures() -> Iterator[Case]:
    """The dumped modules of the repository."""
    yield from folder(ROOT / "fixtures", "module.mlir", "example_axis")


def drawn(count: int, seed: int) -> Iterator[Case]:
    """Random programs: a third that keep examples apart, a third of coincident sizes, a third in
    which they meet.
    """
    rng = np.random.default_rng(seed)
    kinds: list[Any] = [
        strategies.separable_program,
        strategies.coincident_program,
        strategies.mixing_program,
    ]
    for number in range(count):
        make = kinds[number % len(kinds)]
        program = make(rng.bytes(120))
        with jax.enable_x64(program.dtype == "float64"):
            params, batch = parameters(program), data(program)
            lowered = jax.jit(gradient(program), keep_unused=True).lower(params, *batch)
            text = lowered.as_text(debug_info=True)
            leaves = jax.tree.leaves(params)
        axes = {len(leaves) + i: axis for i, axis in enumerate(in_axes(program))}
        origin = f"random: {make.__name__}"
        arrays = [np.asarray(a) for a in (*leaves, *batch)]
        name = f"{number} {program}"
        yield Case(origin, name, text, axes, program.batch, list(range(len(leaves))), arrays)
        if number % 50 == 49:
            jax.clear_caches()
