"""The oldest JAX that this works with, checked at import: else it would first fail far inside."""

import re
from importlib.metadata import version

OLDEST = (0, 10, 1)


def require_jax(versions: dict[str, str] | None = None) -> None:
    """Raise ImportError, in one line, where `jax` or `jaxlib` is too old. `versions`: by default
    those installed.

    >>> require_jax({"jax": "0.10.1", "jaxlib": "0.12.0.dev20261101"})
    >>> require_jax({"jax": "0.10.0", "jaxlib": "0.10.1"})
    Traceback (most recent call last):
    ImportError: hlo-surgery needs jax 0.10.1 or later, and found 0.10.0: pip install -U jax jaxlib
    """
    found = versions or {name: version(name) for name in ("jax", "jaxlib")}
    oldest = ".".join(map(str, OLDEST))
    for name, its in found.items():
        if tuple(map(int, re.findall(r"\d+", its)[:3])) < OLDEST:
            raise ImportError(
                f"hlo-surgery needs {name} {oldest} or later, and found {its}: pip install -U "
                "jax jaxlib"
            )
