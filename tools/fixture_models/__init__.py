"""The models whose gradient modules lie in fixtures/: one family a file, plain JAX."""

from fixture_models import batches, dense, images, language, loops, mixing
from fixture_models.model import Model

MODELS: dict[str, Model] = {
    **dense.MODELS,
    **images.MODELS,
    **language.MODELS,
    **batches.MODELS,
    **loops.MODELS,
    **mixing.MODELS,
}
