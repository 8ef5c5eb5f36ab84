"""The demo on the screen: each step in a line, time and temporaries side by side, the verdict."""

import statistics
import tempfile
from collections import Counter
from pathlib import Path

from hlo_surgery.cli.output import print_json, print_table, print_text, waiting
from hlo_surgery.counted import counted
from hlo_surgery.demo.models import decoder_lm, mlp
from hlo_surgery.demo.steps import (
    ROUNDS,
    VMAP,
    VMAP_OF_ONE,
    Cost,
    Demonstration,
    demonstrate,
    dump,
)
from hlo_surgery.planning.plan import quantity


def show_demo(as_json: bool) -> bool:
    """Run the demo and show it; whether every result was equivalent to `vmap`'s."""
    shown: list[Demonstration] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in (mlp(), decoder_lm()):
            with waiting(f"{model.name}: dump, inspect, rewrite, compile, run", as_json):
                file = dump(model, Path(folder))
                shown.append(demonstrate(model, file))
            if not as_json:
                _print_steps(shown[-1], file)
    equivalent = all(c.passes for d in shown for c in d.comparisons)
    verdict = "equivalent" if equivalent else "not equivalent"
    if as_json:
        print_json({"models": [_summary(d) for d in shown], "verdict": verdict})
    else:
        _print_costs(shown)
        print_text(verdict, "green" if equivalent else "red")
    return equivalent


def _print_steps(demonstration: Demonstration, file: Path) -> None:
    original, plan = demonstration.original, demonstration.rewritten.plan
    assert plan is not None
    taken = Counter(strategy for output in plan.outputs for strategy in output.strategies.values())
    strategies = ", ".join(f"{count} by {strategy}" for strategy, count in taken.items())
    worst = max(demonstration.comparisons, key=lambda c: c.share)
    print_text(demonstration.name, "bold")
    print_text(f"  dump      {file.name}, {quantity(file.stat().st_size)}B of StableHLO")
    gradients = f"{counted(len(original.outputs), 'gradient')} of {plan.batch_size} examples"
    print_text(f"  inspect   {len(original.arguments)} arguments, {gradients}")
    print_text(f"  rewrite   second moments: {strategies}; {demonstration.rewriting_seconds:.2f} s")
    print_text(
        f"  compare   with vmap: off by {worst.error:.1e} of the largest entry at most, in "
        f"{worst.name}"
    )


def _print_costs(shown: list[Demonstration]) -> None:
    rows: list[list[str]] = []
    for demonstration in shown:
        plain = demonstration.costs["plain"]
        for name, cost in demonstration.costs.items():
            time, memory = (
                cost.seconds / plain.seconds,
                cost.temporaries / max(plain.temporaries, 1),
            )
            costs = [
                f"{cost.seconds * 1e3:.2f} ms",
                f"{time:.2f} x",
                f"{cost.temporaries / 1e6:.2f} MB",
                f"{memory:.2f} x",
            ]
            rows.append([demonstration.name, name, *costs])
    title = "gradient and second moments"
    print_table(title, ("model", "program", "time", "", "temporaries", ""), rows)
    print_text(
        f"times are medians of {ROUNDS} rounds, in each of which every program ran once; shares "
        "are of the same round, the smallest and the largest in brackets"
    )
    for demonstration in shown:
        print_text(_beside_others(demonstration))


def _beside_others(demonstration: Demonstration) -> str:
    """What rewriting costs, and buys beside the faster of the two ways to use `vmap`."""
    costs = demonstration.costs
    name = min((VMAP, VMAP_OF_ONE), key=lambda name: costs[name].seconds)
    own, plain, faster = costs["rewritten"], costs["plain"], costs[name]
    memory = own.temporaries / max(faster.temporaries, 1)
    return (
        f"{demonstration.name}: {_spread(own.shares(plain))} of plain's time; "
        f"{_spread(own.shares(faster))} of that of {name!r}, which is the faster, and "
        f"{memory:.2f} of its temporaries"
    )


def _spread(shares: list[float]) -> str:
    """The median, and the smallest and largest, of what is sorted."""
    return f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})"


def _as_plain(cost: Cost) -> dict[str, object]:
    return {"seconds": cost.seconds, "rounds": cost.rounds, "temporaries": cost.temporaries}


def _summary(demonstration: Demonstration) -> dict[str, object]:
    return {
        "name": demonstration.name,
        "rewriting_seconds": demonstration.rewriting_seconds,
        "comparisons": demonstration.comparisons,
        "costs": {name: _as_plain(cost) for name, cost in demonstration.costs.items()},
    }
