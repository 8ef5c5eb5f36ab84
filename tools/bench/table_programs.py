"""The programs that the tables measure, a line with a digest for each.

python -m tools.bench.table_programs [--tpu | --costs]

They are ours of `tools/bench/twelve.py`, and on TPU those of `tools/bench/train_step.py` and the
decoder's steps on pods (`examples/README.md`). Where two commits print the same lines, what one
measured holds for the other: the digest is of what a program computes, not of the order in which
that is written. Where they do not, `--costs` tells what has become of work and memory, on CPU:
FLOPs and bytes of temporaries, as XLA counts them.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax

from examples.decoder import ahead
from tools.bench import train_step, twelve
from tools.bench.program_digest import digest
from tools.models.twelve import TWELVE

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
    for name, function, args in _train_steps() if tpu else _on_cpu():
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
    for workload, make in TWELVE.items():
        problem = make()
        for statistic in twelve.STATISTICS:
            for way, function in twelve.ways(workload, problem, statistic):
                if way.startswith(("plan", "our ", "in ")) and _applies(function, problem.structs):
                    yield f"{workload}, {statistic}: {way}", function, problem.structs


def _applies(function: Callable[..., Any], structs: Any) -> bool:
    try:
        jax.eval_shape(function, *structs)
    except ValueError as reason:
        if "does not apply" not in str(reason):
            raise
        return False
    return True


def _train_steps() -> Iterator[Program]:
    for model, batches in (("tied", LM_BATCHES), ("lm", LM_BATCHES), ("mlp", MLP_BATCHES)):
        for batch in batches:
            problem = train_step.problem_of(model, batch, 12, "take")
            params, *data = problem.structs
            made = train_step.train_steps(problem.loss, len(data), "tpu:v5e", ["MicroAdam"])
            args = (params, params, params, *data)
            yield f"train step, {model}, batch {batch}: MicroAdam", made["MicroAdam"], args


if __name__ == "__main__":
    main()
