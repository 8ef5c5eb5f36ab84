"""What the commands are, and take, as types, and `--batch ARG[:AXIS]` parsed. It needs no JAX."""

import re
from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Annotated

import typer
from typer import Argument, Option

import hlo_surgery

# The examples' axis in each array, - for none; nothing where there is no array.
AXES = r"(?:(?:\d+|-)(?:,(?:\d+|-))*)?"

# The first lines of the commands' own help.
COMMANDS = {
    "inspect": "List a module's arguments and outputs.",
    "plan": "Show what a rewriting would do for each gradient, with its costs, or its refusal.",
    "rewrite": "Rewrite a gradient module so that it also returns statistics of the examples' own "
    "gradients.",
    "run": "Compile and run a module; show its outputs, and save them.",
    "verify": "Rewrite a module and hold it against the original, run on copies of each example; "
    "exit 1 unless equivalent.",
    "diff": "Show the ops that a rewriting adds, in words and in MLIR; without --batch, those in a "
    "file that was rewritten before.",
    "report": "Write a page for a browser: plan, graph, memory and costs of a rewriting, and "
    "refusals in place; exit 1 where there are any.",
    "compile": "Compile a module for a target and show its memory; with -o, write the scheduled "
    "HLO.",
    "cost": "Compile a module for a target, without a run: memory, FLOPs, bytes and estimated "
    "time.",
    "statistics": "List the statistics, with one line each.",
    "demo": "Dump, inspect, rewrite, compile, run an LM and an MLP against vmap; time and "
    "temporaries.",
}


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hlo-surgery {hlo_surgery.__version__}, JAX {version_of('jax')}")
        raise typer.Exit


Version = Annotated[
    bool, Option("--version", callback=_print_version, is_eager=True, help="Print it.")
]
File = Annotated[
    str,
    Argument(
        metavar="FILE",
        help="MLIR text or bytecode, a portable or a jax.export artifact; - for stdin.",
    ),
]
Batch = Annotated[
    list[str],
    Option(
        "--batch",
        metavar="ARG[:AXIS]",
        help="Argument with the examples, by name or position; axis 0 if left out.",
    ),
]
Statistics = Annotated[
    list[str],
    Option(
        "--statistic",
        metavar="NAME[(ARGUMENTS)]",
        help="Such as second_moment or clipped_mean(max_norm=1.0), quoted for the shell; see "
        "hlo-surgery statistics.",
    ),
]
Pass = Annotated[
    str | None,
    Option(
        "--pass", metavar="NAME", help="fold_squared_sums: sums over outer products contracted."
    ),
]
Inputs = Annotated[
    str | None,
    Option(
        "--inputs", metavar="NPZ", help="Arrays by argument name, or arg0, arg1...; else random."
    ),
]
Seed = Annotated[int, Option(help="Of the random inputs.")]
Force = Annotated[bool, Option("--force", help="Replace FILE itself, if OUT is that.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]


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


def parse_segments(given: Sequence[str]) -> dict[str | int, str | int]:
    """Arguments and those with the ids of their rows. Raises ValueError for what is no such pair.

    >>> parse_segments(["nodes=node_ids", "2=3"])
    {'nodes': 'node_ids', 2: 3}
    """
    found: dict[str | int, str | int] = {}
    for text in given:
        rows, _, ids = text.rpartition("=")
        if not (rows and ids):
            raise ValueError(f"--segments is {text!r}; write ROWS=IDS, such as nodes=node_ids")
        found[parse_port(rows)] = parse_port(ids)
    return found


def _axes(text: str) -> list[int | None]:
    return [None if axis == "-" else int(axis) for axis in text.split(",") if axis]


def parse_port(text: str) -> str | int:
    """A position where it is an integer, else a name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def with_help(kind: type[typer.Typer]) -> typer.Typer:
    """An app of some kind, with what the command says of itself."""
    return kind(
        help="Exact statistics of per-example gradients, by rewriting the StableHLO module of a "
        "minibatch gradient.",
        epilog="Exit codes: 0 done, 1 refused or not equivalent, 2 wrong use or bad input, 3 an "
        "internal error.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
