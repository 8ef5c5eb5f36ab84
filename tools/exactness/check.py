"""Statistics of dumped gradients, held against each example's own gradient by their definitions.

python -m tools.exactness.check CORPUS [NAME ...] [--json FILE]

CORPUS holds folders with grad.mlir (a lowered gradient function), inputs.npz (arg0, arg1, ...: its
arguments) and meta.json (`arguments`, each with `examples_along`, its axis of examples or null;
`gradients`, the names of outputs; `batch_size`, `loss_reduction`, `verdict`, `tolerance`). The own
gradients are the module's, unchanged, of batches of copies of one example. Prints for each case how
far each statistic is off, beside twice the case's tolerance; with --json it goes on where a run
before has ended. Exit status 1 where a number is off, or an answer was given where there is none.

Kronecker factors are made of the same program in float64, of the gradients that have them:
`factors` is how many have, and the least number of positions that they allow; and how far those of
the module as it is are off from the mean of the examples' own.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax

import hlo_surgery as hs
from tools.exactness.cases import NOT_SEPARABLE, Arrays, Case, own_gradients, read
from tools.exactness.definitions import definitions
from tools.exactness.factors import factored, least_positions, off_from_mean
from tools.exactness.wide import in_float64

Verdicts = dict[str, str]
EXACT, REFUSED, WRONG, MISSED, SKIPPED = "exact", "refused", "WRONG", "MISSED", "no reference"
# No case has as many positions, and what lies outside of a factor's range asks for far more.
POSITIONS = 1e4


def check(case: Case) -> Verdicts:
    """A verdict and a number for each statistic."""
    try:
        own = own_gradients(case)
    except ValueError as problem:
        if case.verdict != NOT_SEPARABLE:
            return {"all": f"{SKIPPED}: {problem}"}
        own = Arrays()
    wanted = definitions(own)
    try:
        found = statistics_of(case, {name: each.statistic for name, each in wanted.items()})
    except hs.Refusal as refusal:
        verdict = REFUSED if case.verdict == NOT_SEPARABLE else MISSED
        return {"all": f"{verdict}: {str(refusal).splitlines()[0]}"}
    if case.verdict == NOT_SEPARABLE:
        return {"all": f"{WRONG}: numbers where there are none"}
    verdicts = {
        name: judged(each.off(found[name], own), 2 * case.tolerance)
        for name, each in wanted.items()
    }
    return {**verdicts, "factors": of_factors(case)}


def statistics_of(case: Case, asked: dict[str, Any]) -> dict[str, list[Any]]:
    """The outputs of each, of one module that returns all."""
    module = hs.modules.rewrite_module(
        case.text,
        batch=case.batch,
        statistics=asked,
        gradients=list(range(len(case.gradients))),
        loss_reduction=case.loss_reduction,
    )
    outputs = module.call(*case.arrays)
    named = list(zip(module.outputs, outputs, strict=True))
    return {
        name: [x for port, x in named if re.split("[/.]", port.name)[0] == name] for name in asked
    }


def judged(off: float, allowed: float) -> str:
    return f"{EXACT if off <= allowed else WRONG}: {off:.1e}, allowed {allowed:.0e}"


def of_factors(case: Case) -> str:
    try:
        wide = in_float64(case)
        own = own_gradients(wide)
        numbers, factors = factored(wide)
    except ValueError as problem:
        return f"{SKIPPED}: {str(problem).splitlines()[0]}"
    if not numbers:
        return f"{REFUSED}: none of {len(own)}"
    least = max(least_positions(f, own[i]) for i, f in zip(numbers, factors, strict=True))
    off = off_from_mean(case, numbers)
    verdict = EXACT if least <= POSITIONS and off <= 2 * case.tolerance else WRONG
    return f"{verdict}: {len(numbers)} of {len(own)}, positions {least:.3g}, mean off {off:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    done: dict[str, Verdicts] = {}
    if options.json and options.json.exists():
        done = json.loads(options.json.read_text())
    for meta in sorted(options.corpus.glob("*/meta.json")):
        name = meta.parent.name
        if name in done or (options.names and name not in options.names):
            continue
        try:
            done[name] = check(read(meta.parent))
        except Exception as problem:  # a crash is a result, and the other cases go on
            done[name] = {"all": f"CRASHED: {type(problem).__name__}: {problem}"[:300]}
        print(name, *(f"  {what:22} {said}" for what, said in done[name].items()), sep="\n")
        if options.json:
            options.json.write_text(json.dumps(done, indent=1))
    counts = Counter(
        (what, said.split(":")[0]) for each in done.values() for what, said in each.items()
    )
    for (what, verdict), number in sorted(counts.items()):
        print(f"{what:22} {verdict:14} {number}")
    sys.exit(any(verdict in (WRONG, MISSED, "CRASHED") for _, verdict in counts))


if __name__ == "__main__":
    main()
