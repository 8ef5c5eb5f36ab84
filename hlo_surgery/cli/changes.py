"""The commands diff and report: what a rewriting does to a module, for people to read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from hlo_surgery.cli.arguments import Batch, File, Json, Statistics
from hlo_surgery.cli.asking import Options, rewriting
from hlo_surgery.cli.files import output_file, read_module
from hlo_surgery.cli.output import (
    REFUSED,
    print_json,
    print_text,
    printable,
    spelled,
)
from hlo_surgery.dumps import write_atomically
from hlo_surgery.report.findings import Addition, Findings, additions
from hlo_surgery.report.page import find, page
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.wording import counted, listing

NOT_REWRITTEN = (
    "holds no ops that a rewriting has added; say what to add, with --batch and --statistic, or "
    "give a file that hlo-surgery rewrite has written"
)
Words = Annotated[bool, Option("--words", help="Leave out the MLIR.")]


@rewriting
def show_diff(
    file: File,
    batch: Batch = [],  # noqa: B006
    statistic: Statistics = ["second_moment"],  # noqa: B006
    options: Options = {},  # noqa: B006
    words: Words = False,
    json: Json = False,
) -> None:
    """Show the ops that a rewriting adds, in words and in MLIR; without --batch, those in a file
    that was rewritten before.
    """
    module = read_module(file)
    found = additions(rewrite_module(module, **options) if batch else module)
    if not found and not batch:
        raise ValueError(f"{file} {NOT_REWRITTEN}")
    if json:
        print_json({"additions": found})
    else:
        _print_additions(found, words)


def _print_additions(found: Sequence[Addition], words: bool) -> None:
    print_text(f"{counted(sum(len(each.ops) for each in found), 'op')} added")
    for addition in found:
        print_text(f"\n{addition.scope}", "bold cyan")
        if addition.words:
            print_text(f"  {addition.words}")
        print_text(f"  for {listing(addition.lines)}")
        print_text(f"  {counted(len(addition.ops), 'op')}: {addition.counts}")
        if not words:
            _print_mlir(addition)


def _print_mlir(addition: Addition) -> None:
    """Each op; its source line wherever that is another than the line before's."""
    where = ""
    for op in addition.ops:
        if op.where != where:
            where = op.where
            print_text(f"    // {where}", "dim")
        print_text("\n".join(f"    {line}" for line in op.mlir.splitlines()))


@rewriting
def write_report(
    file: File,
    batch: Batch,
    out: Annotated[str, Option("-o", "--output", metavar="HTML", help="File for the page.")],
    statistic: Statistics = ["second_moment"],  # noqa: B006
    options: Options = {},  # noqa: B006
    json: Json = False,
) -> None:
    """Write a page for a browser: plan, graph, memory and costs of a rewriting, and refusals in
    place; exit 1 where there are any.
    """
    output_file(out, file, alone="a page")
    found = _spelled(find(read_module(file), options))
    name = "stdin" if file == "-" else printable(Path(file).name)
    write_atomically(Path(out), page(name, found).encode())
    if json:
        print_json({"file": out, "plan": found.plan, "refused": found.refused})
    else:
        print_text(f"wrote {out}", "green")
    if found.refused:
        if not json:
            print_text(f"refused: {listing(list(found.refused))}", "red", stderr=True)
        raise typer.Exit(REFUSED)


def _spelled(found: Findings) -> Findings:
    """The same, refusals being in the words of the command line."""
    refused = {
        name: replace(reason, why=spelled(reason.why), help=spelled(reason.help))
        for name, reason in found.refused.items()
    }
    return replace(found, refused=refused)
