"""The programs that the tables measure, a line with a digest for each.

python -m tools.bench.table_programs [--tpu]

They are those of `tools/rerun_results`. Where two commits print the same lines, what one measured
holds for the other: the digest is of what a program computes, not of the order in which that is
written.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench import families, loops, norms, train_step
from tools.bench.comparison.methods import METHODS, DoesNotApply, Method
from tools.bench.comparison.strategies import FORCED
from tools.bench.program_digest import digest
from tools.models.workloads import WORKLOADS

OTHERS = ["conv", "lm", "unet", "resnet", "conformer", "embedding", "lstm"]
SURGERY = {"surgery": METHODS["surgery"]}
CLIPPED = {"clipped": METHODS["clipped: surgery"]}
STRATEGIES = {name: method for name, method in FORCED.items() if name != "plain"}
Program = tuple[str, Callable[..., Any], Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tpu", action="store_true", help="those that are compiled for TPU v5e")
    tpu = parser.parse_args().tpu
    for name, function, args in _on_tpu() if tpu else _on_cpu():
        lowered = (
            jax.jit(function).trace(*args).lower(lowering_platforms=("tpu" if tpu else "cpu",))
        )
        print(digest(lowered.as_text()), name, flush=True)


def _on_cpu() -> Iterator[Program]:
    yield from _table("", ["mlp"], SURGERY, batches=[64, 256, 1024, 4096])
    sizes: Any = {"batches": [64, 16, 256], "widths": [256, 128, 512], "depths": [4, 2, 8]}
    yield from _table("", ["mlp"], SURGERY | CLIPPED, **sizes)
    yield from _table("", OTHERS, SURGERY)
    yield from _table("", ["conformer", "embedding"], CLIPPED)
    for batch in (16, 4):
        yield from _table("", ["mlp", *OTHERS], STRATEGIES, batches=[batch])
    yield from _workloads("small", "cpu")
    yield from _norms()
    yield from _loops()


def _on_tpu() -> Iterator[Program]:
    yield from _table("tpu:v5e", ["mlp", "lm", "conv"], SURGERY)
    yield from _table("tpu:v5e", ["conv", "lm"], STRATEGIES)
    yield from _train_steps()
    yield from _workloads("full", "tpu:v5e")


def _table(
    target: str, names: list[str], methods: dict[str, Method], **sizes: Any
) -> Iterator[Program]:
    asked = {"families": names, "batches": [], "widths": [], "depths": [], **sizes}
    for problem in families.problems(argparse.Namespace(**asked)):
        for name, method in methods.items():
            try:
                candidates = method(problem, target or None)
            except DoesNotApply:
                continue
            for candidate in candidates:
                yield f"{problem.title}: {name}", candidate.function, problem.structs


def _workloads(size: str, target: str) -> Iterator[Program]:
    for name, workload in WORKLOADS.items():
        problem = workload.of(size)
        params, *batch = problem.structs
        step = _micro_adam(problem.loss, len(problem.batch_argnums), target)
        yield f"{name}, {size}: MicroAdam", step, (params, params, params, *batch)


def _train_steps() -> Iterator[Program]:
    loss = partial(train_step.lm_loss, how="take")
    for tied in (True, False):
        for batch in (2, 4, 8):
            params = train_step.lm_shapes(_struct, 12, tied)
            tokens = _struct(batch, train_step.LENGTH, dtype=jnp.int32)
            name = f"{'tied' if tied else 'untied'} LM, batch {batch}: MicroAdam"
            yield name, _micro_adam(loss, 1, "tpu:v5e"), (params, params, params, tokens)
    width = train_step.MLP_WIDTH
    layers = [(_struct(width, width), _struct(width))] * train_step.MLP_DEPTH
    for batch in (64, 256, 1024, 4096):
        step = _micro_adam(train_step.mlp_loss, 2, "tpu:v5e")
        rows = _struct(batch, width)
        yield f"MLP, batch {batch}: MicroAdam", step, (layers, layers, layers, rows, rows)


def _norms() -> Iterator[Program]:
    sizes = zip(norms.WIDTHS, norms.WIDTHS[1:], strict=False)
    params = [(_struct(m, n), _struct(n)) for m, n in sizes]
    args = params, _struct(256, norms.WIDTHS[0]), _struct(256, dtype=jnp.int32)
    statistics = {
        "norms": hs.norms(),
        "clipped": hs.clipped_mean(norms.MAX_NORM),
        "squares": hs.second_moment(),
    }
    for name, statistic in statistics.items():
        yield f"norms: {name}", norms.with_statistics(**{name: statistic}), args
    yield "norms: together", norms.with_statistics(**statistics), args


def _loops() -> Iterator[Program]:
    lstm = loops.lstm_arguments(128, 256, 32)
    yield "LSTM", _second_moment(loops.lstm_loss, (1, 2)), _structs(lstm)
    lm = loops.lm_arguments(12, 256, 128, 8, 512)
    yield "scanned LM", _second_moment(loops.scanned_lm_loss, (1,)), _structs(lm)


def _second_moment(loss: Callable[..., Any], batch_argnums: tuple[int, ...]) -> Callable[..., Any]:
    return hs.grad(loss, batch_argnums=batch_argnums, statistics=hs.second_moment())


def _micro_adam(loss: Callable[..., Any], arguments: int, target: str) -> Callable[..., Any]:
    return train_step.train_steps(loss, arguments, target, ["MicroAdam"])["MicroAdam"]


def _struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _structs(args: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)


if __name__ == "__main__":
    main()
