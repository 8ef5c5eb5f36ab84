"""The programs that the tables measure, a line with a digest for each.

python -m tools.bench.table_programs [--tpu | --costs]

They are those of `tools/rerun_results`, and the decoder's steps on pods (`examples/README.md`).
Where two commits print the same lines, what one measured holds for the other: the digest is of what
a program computes, not of the order in which that is written. Where they do not, `--costs` tells
what has become of work and memory, on CPU: FLOPs and bytes of temporaries, as XLA counts them.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax

from examples.decoder import ahead
from tools.bench import families, loops, norms, train_step
from tools.bench.comparison.methods import METHODS, DoesNotApply, Method
from tools.bench.comparison.strategies import FORCED
from tools.bench.program_digest import digest
from tools.models.families import mlp
from tools.models.workloads import WORKLOADS

OTHERS = ["conv", "lm", "unet", "resnet", "conformer", "embedding", "lstm"]
SURGERY = {"surgery": METHODS["surgery"]}
CLIPPED = {"clipped": METHODS["clipped: surgery"]}
STRATEGIES = {name: method for name, method in FORCED.items() if name != "plain"}
LM_BATCHES, MLP_BATCHES = (1, 2, 4, 8), (64, 256, 1024, 4096)
PODS = {"tpu:v5e:4x4": 4, "tpu:v5e:16x16": 16, "tpu:v5p:4x4x4": 4}
"""Topologies, and along how many devices the model is split."""
Program = tuple[str, Callable[..., Any], Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--tpu", action="store_true", help="those that are compiled for TPU v5e")
    choice.add_argument("--costs", action="store_true", help="FLOPs and temporaries instead")
    asked = parser.parse_args()
    lines = _costs() if asked.costs else _digests(asked.tpu)
    for line in lines:
        print(line, flush=True)


def _digests(tpu: bool) -> Iterator[str]:
    for name, text in _lowered(tpu):
        yield f"{digest(text)} {name}"


def _costs() -> Iterator[str]:
    for name, function, args in _on_cpu():
        compiled: Any = jax.jit(function).lower(*args).compile()
        flops, temporaries = compiled.cost_analysis()["flops"], compiled.memory_analysis()
        yield f"{flops:.0f} {temporaries.temp_size_in_bytes} {name}"


def _lowered(tpu: bool) -> Iterator[tuple[str, str]]:
    """Each program's name and text."""
    platform = "tpu" if tpu else "cpu"
    for name, function, args in _on_tpu() if tpu else _on_cpu():
        traced = jax.jit(function).trace(*args)
        yield name, traced.lower(lowering_platforms=(platform,)).as_text()
    if tpu:
        yield from _on_pods()


def _on_pods() -> Iterator[tuple[str, str]]:
    """The decoder's steps, but those by hand."""
    for target, model_axis in PODS.items():
        options = ahead.options_of(["--target", target, "--model-axis", str(model_axis)])
        settings, mesh = ahead.setting(options)
        for name in options.steps:
            if "by hand" not in name:
                step = ahead.lowered(settings, mesh, ahead.STEPS[name](settings))
                yield f"decoder, {target}: {name}", step.as_text()


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
    for model, batches in (("tied", LM_BATCHES), ("lm", LM_BATCHES), ("mlp", MLP_BATCHES)):
        for batch in batches:
            problem = train_step.problem_of(model, batch, 12, "take")
            params, *data = problem.structs
            step = _micro_adam(problem.loss, len(data), "tpu:v5e")
            args = (params, params, params, *data)
            yield f"train step, {model}, batch {batch}: MicroAdam", step, args


def _norms() -> Iterator[Program]:
    problem = mlp.classifier(256, norms.WIDTHS)
    for name, function in norms.by_surgery(problem).items():
        yield f"norms: {name}", function, problem.structs


def _loops() -> Iterator[Program]:
    for problem in loops.PROBLEMS:
        (candidate,) = METHODS["surgery"](problem, None)
        yield problem.title, candidate.function, problem.structs


def _micro_adam(loss: Callable[..., Any], arguments: int, target: str) -> Callable[..., Any]:
    return train_step.train_steps(loss, arguments, target, ["MicroAdam"])["MicroAdam"]


if __name__ == "__main__":
    main()
