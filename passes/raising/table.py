"""The table of raising rules: op name -> rule. A rule reads the attributes once and returns a pure
JAX function.
"""

from collections.abc import Callable
from typing import TypeVar

import jax

from hlo_surgery.passes.ir.mlir import Operation

Raised = Callable[..., tuple[jax.Array, ...]]
Rule = Callable[[Operation], Raised | None]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[str, Rule] = {}


def raises(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Enter a rule in the table by the names of its ops; two rules for one op are an error."""

    def enter(rule: AnyRule) -> AnyRule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a raising rule already: {RULES[name].__name__}")
            RULES[name] = rule
        return rule

    return enter


def single(function: Callable[..., jax.Array]) -> Raised:
    """A function of one result as one that returns a tuple of results."""
    return lambda *operands: (function(*operands),)
