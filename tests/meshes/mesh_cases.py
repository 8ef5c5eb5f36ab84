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


def together(how, model, statistics=ALL, size=None, strategies=STRATEGIES):
    return [Case(how, model, strategy, statistics, size) for strategy in strategies]


DATA, FULLY, TENSOR, EXPLICIT = "data parallel", "fully sharded", "tensor parallel", "explicit axes"
AVERAGED = ("second_moment", "norms", "clipped_mean", "mean_of_tanh")
ALL_CASES = [
    *together(DATA, "mlp"),
    *(Case(DATA, "mlp", "square", (name,)) for name in ("second_moment", "variance")),
    *(Case(DATA, "mlp", "ghost", (name,)) for name in ("norms", "clipped_mean")),
    *together(DATA, "scanned"),
    *together(DATA, "embedded"),
    *together(FULLY, "mlp"),
    *together(FULLY, "embedded", strategies=("loop",)),
    *together(FULLY, "scanned", strategies=("auto",)),
    *together(FULLY, "constrained", strategies=("auto",)),
    *together("shards found in arrays", "mlp", strategies=("auto", "loop")),
    *together("shards told", "mlp", strategies=("loop",)),
    *together(DATA, "mlp", OF_WHOLES),
    *together(FULLY, "embedded", OF_WHOLES, strategies=("auto",)),
    *together(TENSOR, "mlp", OF_WHOLES, strategies=("auto",)),
    *together(TENSOR, "mlp"),
    *together(TENSOR, "embedded", strategies=("auto",)),
    *together(TENSOR, "scanned", strategies=("auto",)),
    *together(TENSOR, "scanned", size=4, strategies=("lift",)),
    *together(EXPLICIT, "constrained", strategies=("auto", "lift")),
    *together("in shard_map", "mlp", AVERAGED),
    *together("checkpoint in the loss", "scanned", strategies=("auto",)),
]
CASES = {case.name: case for case in ALL_CASES}
