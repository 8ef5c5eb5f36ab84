"""Autotune: of some strategies the one that takes the least time, by calls on the first arguments.

    f = hs.grad(loss, statistics=hs.norms(), autotune=True)
    f(params, x)                  # measures
    print(hs.explain(f, params, x))     # ... measured: loop 8.1 ms, auto 9.4 ms, lift 11 ms

Measured are the plan that is predicted to be the fastest, "auto", and both ways that always apply.
What was measured is kept where JAX's cache of compiled programs is on.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.requests.options import Way
from hlo_surgery.rewriting.cache import remembered

# Those that apply to all that is asked; and up to how many bytes all examples' gradients of one
# parameter are made at once to be measured.
ALWAYS: tuple[Way, ...] = ("lift", "loop")
LARGEST = 1 << 30
ROUNDS, LEAST_ROUNDS = 5, 3
Run = Callable[[], Any]


def measured(code: mlir.Module, candidates: Mapping[str, Run]) -> dict[str, float]:
    """Seconds of a call of each candidate, the fastest first, as kept for this module, the planned
    one, on such a machine, or as calls take now.
    """
    machine = [jax.devices()[0].device_kind, len(jax.devices()), os.cpu_count()]
    return remembered(code, machine, lambda: _seconds(candidates))


def _seconds(candidates: Mapping[str, Run]) -> dict[str, float]:
    medians = {name: statistics.median(own) for name, own in timed(candidates, ROUNDS).items()}
    return dict(sorted(medians.items(), key=lambda pair: pair[1]))


def timed(
    candidates: Mapping[str, Run], rounds: int, enough: float = math.inf
) -> dict[str, list[float]]:
    """Seconds of interleaved calls, behind one of each that compiles; what has taken enough in some
    rounds is called no more.
    """
    for run in candidates.values():
        jax.block_until_ready(run())
    taken = {name: list[float]() for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            if len(taken[name]) < LEAST_ROUNDS or sum(taken[name]) < enough:
                start = time.perf_counter()
                jax.block_until_ready(run())
                taken[name].append(time.perf_counter() - start)
    return taken
