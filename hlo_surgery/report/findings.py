"""Findings: all that a page tells of a module and a request, found by rewriting and compiling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.ir.modules import inline_calls
from hlo_surgery.planning.options import PlanningOptions
from hlo_surgery.planning.plan import Plan
from hlo_surgery.report.additions import Addition, additions
from hlo_surgery.report.source_program import SourceProgram, source_program
from hlo_surgery.requests.request import make_request
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.rewriting.refusals import refused_outputs
from hlo_surgery.targets.costs import Cost, cost
from hlo_surgery.targets.scheduled.live_memory import Step

# What XLA does before anything else, so that both programs are counted alike.
TIDY = "cse", "func.func(trivial-dce)"


@dataclass(frozen=True)
class Memory:
    """Live bytes along one program, and the peak that XLA plans."""

    name: str
    steps: tuple[Step, ...]
    peak: int


@dataclass(frozen=True)
class Findings:
    """`plan` is that of the gradients that are not `refused`, None where there is none; these are
    reasons by output. `memory`: of the original and the rewritten module on `target`, or
    `no_memory` says why not.
    """

    original: SourceProgram
    rewritten: SourceProgram | None
    plan: Plan | None
    refused: Mapping[str, Reason]
    additions: tuple[Addition, ...]
    memory: tuple[Memory, ...]
    target: str
    no_memory: str


def find(module: Module, options: Mapping[str, Any]) -> Findings:
    """Rewrite a module, as `rewrite_module` takes `options`, and look at what has become of it.

    Raises ValueError or TypeError for wrong use. Refusals are findings.
    """
    rewritten, refused = _rewritten(module, options)
    original = mlir.clone(module.code)
    inline_calls(original)
    mlir.run_passes(original, *TIDY)
    modules = {"original": module} | ({"rewritten": rewritten} if rewritten else {})
    costs, why_not = _costs(modules, options.get("target"))
    return Findings(
        source_program(original),
        source_program(rewritten.code) if rewritten else None,
        rewritten.plan if rewritten else None,
        refused,
        additions(rewritten) if rewritten else (),
        tuple(Memory(name, each.staircase, each.peak_bytes) for name, each in costs.items()),
        next((each.target for each in costs.values()), ""),
        why_not,
    )


def _rewritten(
    module: Module, options: Mapping[str, Any]
) -> tuple[Module | None, dict[str, Reason]]:
    """The module rewritten for all gradients that can be, and why others are refused."""
    try:
        return rewrite_module(module, **options), {}
    except Refusal as refusal:
        reasons = _reasons(module, options, refusal)
    try:
        left: Any = [n for n in _gradients(module, options) if n not in reasons]
        return rewrite_module(module, **(dict(options) | {"gradients": left})), reasons
    except (Refusal, ValueError, TypeError):
        return None, reasons


def _reasons(module: Module, options: Mapping[str, Any], refusal: Refusal) -> dict[str, Reason]:
    """By output; where the module cannot be analysed, or all outputs have shares and something else
    is refused, that alone.
    """
    try:
        found = refused_outputs(module, _request(module, options))
    except Refusal:
        found = {}
    said = Reason(refusal.why, refusal.op, refusal.where, refusal.help, refusal.library)
    return found or {refusal.output or "all outputs": said}


def _gradients(module: Module, options: Mapping[str, Any]) -> list[str]:
    return [module.outputs[number].name for number in _request(module, options).gradients]


def _request(module: Module, options: Mapping[str, Any]) -> Any:
    planning: Any = {n: x for n, x in options.items() if n in PlanningOptions.__annotations__}
    others = {n: x for n, x in options.items() if n not in planning}
    return make_request(module, planning=planning, **others)


def _costs(modules: Mapping[str, Module], target: str | None) -> tuple[dict[str, Cost], str]:
    """What each costs on a target; nothing, and the reason, where it cannot be compiled for it."""
    try:
        return {name: cost(module, target) for name, module in modules.items()}, ""
    except (Refusal, ValueError) as problem:
        return {}, str(problem)
