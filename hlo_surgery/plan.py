"""Plans: what is done for each gradient output, as values that print."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hlo_surgery.errors import Reason


@dataclass(frozen=True)
class SitePlan:
    """One site: its op, the user's source line, and the FLOPs and bytes of the plain contraction.

    `trips`: how often it runs, where it lies in a loop."""

    op: str
    where: str
    flops: int
    bytes: int
    trips: int = 1


@dataclass(frozen=True)
class OutputPlan:
    """One gradient output: its sites, the ops of its tail, and the strategy taken for each statistic.

    `lifted_bytes`: what the gradients of all examples would take at once.
    """

    name: str
    sites: tuple[SitePlan, ...]
    tail: tuple[str, ...]
    strategies: Mapping[Any, str]
    lifted_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """What is done for each gradient output, and which data of the whole batch is taken as constant."""

    batch_size: int
    loss_reduction: str
    outputs: tuple[OutputPlan, ...]
    data: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        head = f"{self.batch_size} examples, loss reduced by {self.loss_reduction}"
        data = [f"  taken as constant: {r.op} at {r.where}: {r.why}" for r in self.data]
        return "\n".join([head, *data, *map(_output_text, self.outputs)])


def _output_text(output: OutputPlan) -> str:
    strategies = ", ".join(f"{name}: {strategy}" for name, strategy in output.strategies.items())
    lines = [f"{output.name}  [{strategies}]"]
    lines += [f"  {output.note}"] if output.note else []
    lines += [f"  site {site_text(s)}: {quantity(s.flops)}FLOP, {quantity(s.bytes)}B" for s in output.sites]
    lines += [f"  tail {' '.join(map(bare, output.tail))}"] if output.tail else []
    return "\n".join([*lines, f"  all examples' gradients at once: {quantity(output.lifted_bytes)}B"])


def site_text(site: SitePlan) -> str:
    """The op, its source line, and how often a loop runs it: 'stablehlo.dot_general at model.py:9, 12 times'."""
    return f"{site.op} at {site.where}" + (f", {site.trips} times" if site.trips > 1 else "")


def bare(op: str) -> str:
    """The name of an op without its dialect: 'stablehlo.dot_general' -> 'dot_general'."""
    return op.removeprefix("stablehlo.")


def quantity(number: float) -> str:
    """A number with a unit prefix: 12345 -> '12.3 k'."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"
