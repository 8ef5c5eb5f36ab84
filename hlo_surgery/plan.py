"""Plans: what is done for each gradient output, as values that print."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hlo_surgery.passes.dataflow.kernels import Trusted
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.strategies.gradient_costs import Predicted, SitePlan
from hlo_surgery.wording import bare, counted, duration, listing, quantity

# What a table of plans tells of each gradient, behind its statistics: see `plan_row`.
COLUMNS = ("sites", "FLOP", "bytes", "tail", "predicted beside the gradient")


@dataclass(frozen=True)
class OutputPlan:
    """One gradient output: its sites, its tail's ops, and the strategy for each statistic.

    `lifted_bytes`: what the gradients of all examples would take at once; `chunk`: how many a loop
    takes at once; `predicted`: what every strategy that applies would cost, one statistic at a
    time; square, which shares nothing between them, for all that it makes.
    """

    name: str
    sites: tuple[SitePlan, ...]
    tail: tuple[str, ...]
    strategies: Mapping[Any, str]
    lifted_bytes: int
    chunk: int
    predicted: Mapping[str, Predicted]
    note: str = ""

    def seconds(self, statistic: str) -> float:
        """What a statistic is predicted to take of this gradient, beside it."""
        own = [self.predicted.get(name) for name in self.strategies[statistic].split(" + ")]
        return sum(each.seconds for each in own if each is not None)


@dataclass(frozen=True)
class Plan:
    """What is done for each gradient output, and which data of the batch is taken as constant.

    `unmarked`: those of `data` of which nobody has said that they are constants. `loss`: the output
    that was taken as the loss, where a statistic needs it; `others`: those that are no gradients.
    `trusted`: calls of which is declared, and not proved, that they take examples one by one.
    `unnamed`: arguments with as many rows as there are examples that are not named as the batch's,
    which count as known to everybody. `seconds`: what the plain gradient is predicted to take,
    where predictions were held against measurements. `measured`: seconds of a call by strategy, the
    one that was taken first, where `autotune` was asked for. `words`: what each strategy does.
    """

    batch_size: int
    loss_reduction: str
    outputs: tuple[OutputPlan, ...]
    data: tuple[Reason, ...] = ()
    loss: str = ""
    others: tuple[str, ...] = ()
    trusted: tuple[Trusted, ...] = ()
    unnamed: tuple[str, ...] = ()
    unmarked: tuple[Reason, ...] = ()
    seconds: float | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        notes = [f"  {each}" for each in self.notes()]
        return "\n".join([self.head(), *notes, *_listed(self.outputs), *self.totals()])

    def head(self) -> str:
        """How many examples there are, and how the loss is said to reduce them."""
        said = f"loss reduced by {self.loss_reduction} (taken on trust)"
        return f"{counted(self.batch_size, 'example')}, {said}"

    def notes(self) -> list[str]:
        """What else is given, and not proved: constants of the batch, what calls do, and what
        outputs and arguments count as.
        """
        data = [f"taken as constant: {r.op} at {r.where}: {r.why}" for r in self.data]
        taken = [self.taken()] if self.others else []
        return [*data, *map(str, self.trusted), *taken, *self.beside_batch()]

    def taken(self) -> str:
        """Which outputs count as what: "gradients: ['b'], ['w']; no gradients: [0] (the loss)"."""
        others = [f"{name} (the loss)" if name == self.loss else name for name in self.others]
        gradients = f"gradients: {listing([output.name for output in self.outputs])}"
        return gradients + (f"; no gradients: {listing(others)}" if others else "")

    def beside_batch(self) -> list[str]:
        """Which arguments look like the batch's, and are not named: "the same for all examples: y
        int32[8], with as many rows as there are examples; name what belongs to these (...)".
        """
        if not self.unnamed:
            return []
        return [
            f"the same for all examples: {listing(self.unnamed)}, with as many rows as there are "
            "examples; name what belongs to these (batch_argnums, batch, --batch)"
        ]

    def totals(self) -> list[str]:
        """What each statistic takes, and how many gradients have it from which strategy: "norms:
        about 1.2 x the gradient; 26 lift, 12 ghost"; and what these do.
        """
        taken = self._taken()
        lines = [f"{n}: {self._share(n)}{_counts(strategies)}" for n, strategies in taken.items()]
        all = {each for own in taken.values() for name in own for each in name.split(" + ")}
        timed = [f"{name} {duration(s).lstrip('+')}" for name, s in self.measured.items()]
        if timed:
            lines.append(f"measured: {', '.join(timed)}; {next(iter(self.measured))} is taken")
        words = [f"{name}: {said}" for name, said in self.words.items() if name in all]
        return [*lines, "; ".join(words)] if words else lines

    def _taken(self) -> dict[str, list[str]]:
        """By statistic, the strategy of each gradient."""
        return {n: [o.strategies[n] for o in self.outputs] for n in self.outputs[0].strategies}

    def _share(self, statistic: str) -> str:
        """What a statistic takes, with the gradient: "about 1.2 x the gradient; "."""
        if not self.seconds:
            return ""
        own = sum(output.seconds(statistic) for output in self.outputs)
        return f"about {1 + own / self.seconds:.1f} x the gradient; "


def _counts(strategies: Sequence[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(strategies).most_common())


def _listed(outputs: Sequence[OutputPlan]) -> list[str]:
    """All gradients; of those to which the same is done, as of equal layers, the first's name."""
    alike: dict[tuple[str, str], list[str]] = {}
    for output in outputs:
        told = ", ".join(f"{name}: {strategy}" for name, strategy in output.strategies.items())
        alike.setdefault((told, _output_text(output)), []).append(output.name)
    return [
        f"{names[0]}{f' and {len(names) - 1} alike' if names[1:] else ''}  [{told}]\n{text}"
        for (told, text), names in alike.items()
    ]


def _output_text(output: OutputPlan) -> str:
    told = [
        output.note,
        *(f"site {site_text(s)}: {site_cost(s)}" for s in output.sites),
        output.tail and f"tail {' '.join(map(bare, output.tail))}",
        output.predicted
        and f"predicted {'; '.join(map(predicted_text, output.predicted.items()))}",
        f"all examples' gradients at once: {quantity(output.lifted_bytes)}B",
    ]
    return "\n".join(f"  {each}" for each in told if each)


def site_cost(site: SitePlan) -> str:
    """'12.3 kFLOP, 4 kB'."""
    return f"{quantity(site.flops)}FLOP, {quantity(site.bytes)}B"


def plan_table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Titles, and a row for each gradient; what a cell has several of is by line."""
    statistics = plan.outputs[0].strategies
    return ["gradient", *statistics, *COLUMNS], [_row(output) for output in plan.outputs]


def _row(output: OutputPlan) -> list[str]:
    sites = output.sites
    return [
        output.name,
        *output.strategies.values(),
        "\n".join(bare(site_text(site)) for site in sites) or output.note,
        "\n".join(quantity(site.flops) for site in sites),
        "\n".join(quantity(site.bytes) for site in sites),
        " ".join(map(bare, output.tail)),
        "\n".join(map(predicted_text, output.predicted.items())),
    ]


def predicted_text(strategy: tuple[str, Predicted]) -> str:
    """A strategy and its predicted cost: 'square +1.2 us, 64 kB'."""
    name, cost = strategy
    return f"{name} {duration(cost.seconds)}, {quantity(cost.temporaries)}B"


def site_text(site: SitePlan) -> str:
    """The op, its line, and its runs in a loop: 'stablehlo.dot_general at model.py:9, 12 times'."""
    return f"{site.op} at {site.where}" + (f", {site.trips} times" if site.trips > 1 else "")
