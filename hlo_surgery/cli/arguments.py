"""What the commands take, as types, and `--batch ARG[:AXIS]` parsed."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.fold_squared_sums import fold_squared_sums

# The examples' axis in each array, - for none; nothing where there is no array.
AXES = r"(?:(?:\d+|-)(?:,(?:\d+|-))*)?"

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="MLIR text or bytecode, a portable or a jax.export artifact; - for stdin.",
    ),
]
Batch = Annotated[
    list[str],
    typer.Option(
        "--batch",
        metavar="ARG[:AXIS]",
        help="Argument with the examples, by name or position; axis 0 if left out.",
    ),
]
Statistics = Annotated[
    list[str],
    typer.Option(
        "--statistic",
        metavar="NAME[(ARGUMENTS)]",
        help="Such as second_moment or clipped_mean(max_norm=1.0), quoted for the shell; see "
        "hlo-surgery statistics.",
    ),
]
Pass = Annotated[
    str | None,
    typer.Option(
        "--pass", metavar="NAME", help="fold_squared_sums: sums over outer products contracted."
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        "--inputs", metavar="NPZ", help="Arrays by argument name, or arg0, arg1...; else random."
    ),
]
Seed = Annotated[int, typer.Option(help="Of the random inputs.")]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE itself, if OUT is that.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


PASSES: dict[str, Callable[[mlir.Module], int]] = {"fold_squared_sums": fold_squared_sums}


def run_pass(name: str, module: Module) -> tuple[Module, int]:
    """A module after one pass by itself, and how many sums that has folded. Raises ValueError where
    there is no such pass.
    """
    if name not in PASSES:
        raise ValueError(f"there is no pass {name!r}; there is {', '.join(PASSES)}")
    code = mlir.clone(module.code)
    folded = PASSES[name](code)
    return Module(code), folded


def parse_batch(given: Sequence[str]) -> dict[str | int, int]:
    """Example axis by argument name or position. Raises ValueError where an argument comes twice.

    >>> parse_batch(["batch['x']", "tokens:1", "3:-1"])
    {"batch['x']": 0, 'tokens': 1, 3: -1}
    """
    axes: dict[str | int, int] = {}
    for text in given:
        found = re.fullmatch(r"(.+):(-?\d+)", text)
        key = parse_port(found[1] if found else text)
        if key in axes:
            raise ValueError(f"--batch names {key!r} twice")
        axes[key] = int(found[2]) if found else 0
    return axes


def parse_custom_calls(given: Sequence[str]) -> dict[str, tuple[list[int | None], ...]]:
    """The axes of operands and results by the name of a call. Raises ValueError for anything else,
    or a name that comes twice.

    >>> parse_custom_calls(["__gpu$kernel=0,1,-:0"])
    {'__gpu$kernel': ([0, 1, None], [0])}
    """
    calls: dict[str, tuple[list[int | None], ...]] = {}
    for text in given:
        name, _, axes = text.rpartition("=")
        if not name or not re.fullmatch(rf"{AXES}:{AXES}", axes):
            raise ValueError(
                f"--custom-call {text!r} is none; write NAME=AXES:AXES, the examples' axis in each "
                "operand and in each result, - for none, such as kernel=0,0,-:0"
            )
        if name in calls:
            raise ValueError(f"--custom-call names {name!r} twice")
        calls[name] = tuple(map(_axes, axes.split(":")))
    return calls


def _axes(text: str) -> list[int | None]:
    return [None if axis == "-" else int(axis) for axis in text.split(",") if axis]


def parse_port(text: str) -> str | int:
    """A position where it is an integer, else a name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text
