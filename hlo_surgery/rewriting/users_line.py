"""The user's line, at which warnings are issued."""

import inspect
from pathlib import Path

import jax

# Between here and the line that asked lie only these.
BETWEEN = tuple(f"{folder}/" for folder in (Path(__file__).parents[1], Path(jax.__file__).parent))


def users_level() -> int:
    """How far out, as `warnings.warn` counts for who calls this, the user's own line is."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(BETWEEN):
        level, frame = level + 1, frame.f_back
    return level
