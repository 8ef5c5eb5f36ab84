"""The command `hlo-surgery`: its arguments, what it reads and writes, and how it speaks.

The command begins here: its own help and its version need no JAX.
"""

import os
import sys

import typer

from hlo_surgery.cli.arguments import COMMANDS, Version, with_help

COMPLETION = "_HLO_SURGERY_COMPLETE"


def main() -> None:
    """Run a command; help and version without importing any."""
    if COMPLETION in os.environ or not COMMANDS.keys().isdisjoint(sys.argv[1:]):
        from hlo_surgery.cli.commands import main as commands

        commands()
    overview()


overview = with_help(typer.Typer)


@overview.callback()
def start(version: Version = False) -> None:
    """Before any command."""


def _nothing() -> None:
    """What is listed here alone: the command itself is imported where it is asked for."""


for _name, _line in COMMANDS.items():
    overview.command(_name, short_help=_line)(_nothing)
