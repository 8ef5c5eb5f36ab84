"""The command `hlo-surgery`: its arguments, what it reads and writes, and how it speaks.

The command begins here: its own help and its version need no JAX.
"""

import os
import sys
from importlib.metadata import version as version_of
from typing import Annotated

import typer

import hlo_surgery

# The first lines of the commands' own help.
COMMANDS = {
    "inspect": "List a module's arguments and outputs; with --batch, the rewriting's plan or "
    "refusal.",
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
COMPLETION = "_HLO_SURGERY_COMPLETE"


def main() -> None:
    """Run a command; help and version without importing any."""
    if COMPLETION in os.environ or not COMMANDS.keys().isdisjoint(sys.argv[1:]):
        from hlo_surgery.cli.commands import main as commands

        commands()
    overview()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hlo-surgery {hlo_surgery.__version__}, JAX {version_of('jax')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
]


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


overview = with_help(typer.Typer)


@overview.callback()
def start(version: Version = False) -> None:
    """Before any command."""


def _nothing() -> None:
    """What is listed here alone: the command itself is imported where it is asked for."""


for _name, _line in COMMANDS.items():
    overview.command(_name, short_help=_line)(_nothing)
