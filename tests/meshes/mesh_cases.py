"""The table of what runs on meshes: how a model lies or is used there, a strategy, statistics."""

from dataclasses import dataclass

from tests.meshes.mesh_models import STATISTICS, WHOLE

ALL, OF_WHOLES = tuple(STATISTICS), tuple(WHOLE)
STRATEGIES = ("auto", "lift", "loop")


@dataclass(frozen=True)
class Case:
    """`how`: a layout or a program. `size`: the first so many examples only."""

    how: str
    model: str
    strategy: str
    statistics: tuple[str, ...]
    size: int | None = None

    @property
    def name(self):
        sets = {ALL: "all", OF_WHOLES: "of wholes"}
        asked = sets.get(self.statistics) or " ".join(self.statistics)
        few = f" of {self.size} examples" if self.size else ""
        return f"{self.how}: {self.model}{few}, {asked} by {self.strategy}"


def each_alone(how, model, *strategies):
    return [Case(how, model, strategy, (name,)) for strategy in strategies for name in STATISTICS]


def together(how, model, statistics=ALL, size=None, strategies=STRATEGIES):
    return [Case(how, model, strategy, statistics, size) for strategy in strategies]


DATA, FULLY, TENSOR, EXPLICIT = "data parallel", "fully sharded", "tensor parallel", "explicit axes"
# Of these, how one module is partitioned is counted, too.
COUNTED = [
    *each_alone(DATA, "mlp", "auto", "loop"),
    *together(DATA, "mlp", strategies=("lift",)),
    *(Case(DATA, "mlp", "square", (name,)) for name in ("second_moment", "variance")),
    *(Case(DATA, "mlp", "ghost", (name,)) for name in ("norms", "clipped_mean")),
    *each_alone(DATA, "scanned", "auto"),
    *together(DATA, "scanned", strategies=("lift", "loop")),
    *(Case(DATA, "scanned", "ghost", (name,)) for name in ("norms", "clipped_mean")),
    *each_alone(DATA, "embedded", "auto"),
    *together(DATA, "embedded", strategies=("lift", "loop")),
    *(Case(DATA, "embedded", "ghost", (name,)) for name in ("norms", "clipped_mean")),
    *(Case(DATA, "convolutions", "auto", (name,)) for name in ("second_moment", "clipped_mean")),
    *together(DATA, "convolutions", strategies=("lift", "loop")),
    *each_alone(FULLY, "mlp", "auto"),
    *together(FULLY, "mlp", strategies=("lift", "loop")),
    *(Case(FULLY, "embedded", "auto", (name,)) for name in ("second_moment", "clipped_mean")),
    *together(FULLY, "embedded", strategies=("loop",)),
    *together(FULLY, "scanned", strategies=("auto", "loop")),
    *together(FULLY, "convolutions", strategies=("auto",)),
    *each_alone(FULLY, "constrained", "auto"),
    *together(FULLY, "constrained", strategies=("lift", "loop")),
    *together("shards found in arrays", "mlp", strategies=("auto", "loop")),
    *together("shards told", "mlp", strategies=("loop",)),
]
AVERAGED = ("second_moment", "norms", "clipped_mean", "mean_of_tanh")
UNCOUNTED = [
    *together(DATA, "mlp", OF_WHOLES),
    *together(DATA, "scanned", OF_WHOLES),
    *together(FULLY, "embedded", OF_WHOLES, strategies=("auto", "loop")),
    *together(FULLY, "convolutions", OF_WHOLES, strategies=("auto",)),
    *together(TENSOR, "mlp", OF_WHOLES, strategies=("auto", "loop")),
    *together(TENSOR, "scanned", OF_WHOLES, strategies=("auto",)),
    *together(EXPLICIT, "constrained", OF_WHOLES, strategies=("auto",)),
    *together(TENSOR, "mlp"),
    *together(TENSOR, "embedded", strategies=("auto", "loop")),
    *together(TENSOR, "scanned", strategies=("auto", "loop")),
    *together(TENSOR, "convolutions", strategies=("auto", "loop")),
    *together(TENSOR, "convolutions", size=4, strategies=("lift",)),
    *together(TENSOR, "constrained"),
    *together(EXPLICIT, "constrained", strategies=("auto", "lift")),
    *together(FULLY, "mlp", size=8, strategies=("loop",)),
    *together(EXPLICIT, "mlp", strategies=("auto", "loop")),
    *together(EXPLICIT, "scanned", strategies=("auto",)),
    *together("in shard_map", "mlp", AVERAGED),
    *together("in shard_map", "embedded", AVERAGED, strategies=("auto",)),
    *together("in shard_map", "convolutions", AVERAGED, strategies=("auto",)),
    *together("parameters donated", "mlp", ("second_moment",), strategies=("auto", "loop")),
    *together("scan over train steps", "mlp", ("second_moment",), strategies=("auto", "loop")),
    *together("checkpoint in the loss", "scanned", strategies=("auto", "loop")),
]
CASES = {case.name: case for case in [*COUNTED, *UNCOUNTED]}
