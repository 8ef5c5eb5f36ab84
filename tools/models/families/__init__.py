"""Families of models with free sizes, a file each; every loss is a mean over the examples.

`FAMILIES` are those that `bench/families.py` compares methods over.
"""

from functools import partial

from tools.models.families import conformer, conv, embedding, lm, lstm, mlp, resnet, unet
from tools.models.problem import Build

FAMILIES: dict[str, list[Build]] = {
    "mlp": [mlp.problem],
    "lm": [lm.problem],
    "conv": [partial(conv.problem, shape) for shape in conv.SHAPES],
    "unet": [unet.problem],
    "resnet": [resnet.problem],
    "conformer": [conformer.problem],
    "embedding": [embedding.problem],
    "lstm": [lstm.problem],
}
# Where no batch sizes are asked for; every other family has one of its own.
BATCHES = {"mlp": [64, 256, 1024, 4096]}
