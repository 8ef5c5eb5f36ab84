"""All layers of random programs, by name; the files imported here register theirs in the table."""

from tests.programs import (
    layers_data,
    layers_dense,
    layers_linear,
    layers_loops,
    layers_moves,
    layers_recurrent,
)
from tests.programs.layer_table import LAYERS, per_feature, times

__all__ = [
    "LAYERS",
    "layers_data",
    "layers_dense",
    "layers_linear",
    "layers_loops",
    "layers_moves",
    "layers_recurrent",
    "per_feature",
    "times",
]
