"""hlo-surgery, the command: inspect, plan, rewrite, diff, report, run, verify, compile, cost,
statistics, demo.

Exit codes: 0 done, 1 refused or not shown to be equivalent, 2 wrong use or bad input, 3 an internal
error.
"""

from typing import Annotated, Any

import numpy as np
import typer
from typer import Option

from hlo_surgery.cli.arguments import (
    COMMANDS,
    Batch,
    File,
    Force,
    Inputs,
    Json,
    Pass,
    Statistics,
    Version,
    with_help,
)
from hlo_surgery.cli.asking import Options, listed, rewriting
from hlo_surgery.cli.changes import show_diff, write_report
from hlo_surgery.cli.costs import compile_module, show_cost
from hlo_surgery.cli.demo import show_demo
from hlo_surgery.cli.files import (
    output_file,
    output_names,
    read_inputs,
    read_module,
    write_arrays,
    write_module,
)
from hlo_surgery.cli.output import (
    REFUSED,
    print_json,
    print_plan,
    print_ports,
    print_summaries,
    print_table,
    print_text,
    reported,
    summarise,
)
from hlo_surgery.cli.supervision import supervised
from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.terms.fold_squared_sums import fold_squared_sums
from hlo_surgery.rewriting.pipeline import explain_module, rewrite_module
from hlo_surgery.targets.target import without_tpu
from hlo_surgery.verification.verify import verify_module
from hlo_surgery.wording import counted

PASS = "fold_squared_sums"


class Supervised(typer.Typer):
    """Commands, which as a program run in a child process of their own."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the command that the process was started with."""
        supervised(lambda: super(Supervised, self).__call__(*args, **kwargs))


main = with_help(Supervised)


@main.callback()
def start(version: Version = False) -> None:
    """Before any command."""
    without_tpu()


@main.command()
def inspect(file: File, json: Json = False) -> None:
    """List a module's arguments and outputs."""
    with reported(json):
        module = read_module(file)
        ports = {"arguments": module.arguments, "outputs": module.outputs}
        if json:
            print_json(ports)
        else:
            print_ports(ports)


@main.command()
@rewriting
def plan(
    file: File,
    batch: Batch,
    statistic: Statistics = ["second_moment"],  # noqa: B006
    options: Options = {},  # noqa: B006
    json: Json = False,
) -> None:
    """Show what a rewriting would do for each gradient, with its costs, or its refusal."""
    found = explain_module(read_module(file), **options)
    if json:
        print_json({"plan": found})
    else:
        print_plan(found)


@main.command()
@rewriting
def rewrite(
    file: File,
    out: Annotated[
        str,
        Option("-o", "--output", metavar="OUT", help="File for the module; - for stdout."),
    ],
    batch: Batch = [],  # noqa: B006
    statistic: Statistics = [],  # noqa: B006
    only: Pass = None,
    force: Force = False,
    options: Options = {},  # noqa: B006
    json: Json = False,
) -> None:
    """Rewrite a gradient module so that it also returns statistics of the examples' own gradients.

    Or, with --pass, any module so that it returns the same for less. OUT is text where it ends in
    .mlir, a jax.export artifact in .jax_export, else MLIR bytecode.
    """
    out = output_file(out, file, json=json, force=force)
    _check_asked(only, batch, statistic)
    module = read_module(file)
    if only:
        rewritten = Module(mlir.clone(module.code))
        folded = fold_squared_sums(rewritten.code)
    else:
        rewritten, folded = rewrite_module(module, **options), None
    write_module(rewritten, out)
    if json:
        counts = {} if folded is None else {"folded": folded}
        print_json({"file": out, "outputs": rewritten.outputs, "plan": rewritten.plan} | counts)
    else:
        _print_rewritten(module, rewritten, folded, out)


def _check_asked(only: str | None, batch: list[str], statistic: list[str]) -> None:
    """Raises ValueError unless there is either a pass, or arguments and statistics."""
    if only not in (None, PASS):
        raise ValueError(f"there is no pass {only!r}; there is {PASS}")
    if only and (batch or statistic):
        raise ValueError(f"--pass stands alone: {PASS} takes no --batch and no --statistic")
    if not only and not (batch and statistic):
        missing = "--statistic" if batch else "--batch"
        raise ValueError(f"Missing option '{missing}', or --pass {PASS} instead of both")


def _print_rewritten(module: Module, rewritten: Module, folded: int | None, out: str) -> None:
    aside = out == "-"
    if rewritten.plan is not None:
        print_text(rewritten.plan.taken(), stderr=aside)
        for each in rewritten.plan.beside_batch():
            print_text(each, "yellow", stderr=aside)
    if not aside:
        added = counted(len(rewritten.outputs) - len(module.outputs), "statistic")
        more = added if folded is None else _folded(folded)
        made = f"{counted(len(module.outputs), 'output')} of the original, {more}"
        print_text(f"wrote {out}: {made}", "green")


def _folded(sums: int) -> str:
    return f"{counted(sums, 'sum')} folded" + (
        "" if sums else ": it has none over outer products, as vmap of a gradient makes them"
    )


@main.command()
def run(
    file: File,
    inputs: Inputs = None,
    out: Annotated[
        str | None, Option("-o", "--output", metavar="NPZ", help="File for the outputs.")
    ] = None,
    json: Json = False,
) -> None:
    """Compile and run a module; show its outputs, and save them."""
    with reported(json):
        if out is not None:
            output_file(out, file, inputs, alone="an npz archive")
        module = read_module(file)
        arrays = read_inputs(inputs, module.arguments)
        outputs = [np.asarray(output) for output in module.call(*arrays)]
        if out is not None:
            write_arrays(out, dict(zip(output_names(module.outputs), outputs, strict=True)))
        summaries = summarise(module.outputs, outputs)
        if json:
            print_json({"outputs": summaries, "file": out})
        else:
            print_summaries(summaries)


@main.command()
@rewriting
def verify(
    file: File,
    batch: Batch,
    statistic: Statistics = ["second_moment"],  # noqa: B006
    options: Options = {},  # noqa: B006
    inputs: Inputs = None,
    json: Json = False,
) -> None:
    """Rewrite a module and hold it against the original, run on copies of each example; exit 1
    unless equivalent.
    """
    module = read_module(file)
    arrays = None if inputs is None else read_inputs(inputs, module.arguments)
    verdict = verify_module(module, **options, inputs=arrays)
    is_equivalent = verdict.verdict == "equivalent"
    if json:
        print_json(verdict)
    else:
        print_text(str(verdict), "green" if is_equivalent else "red")
    if not is_equivalent:
        raise typer.Exit(REFUSED)


main.command("diff")(show_diff)
main.command("report")(write_report)
main.command("compile")(compile_module)
main.command("cost")(show_cost)


@main.command()
def statistics(json: Json = False) -> None:
    """List the statistics, with one line each."""
    rows = listed()
    if json:
        print_json({"statistics": rows})
    else:
        cells = ((r["usage"], r["summary"], "Python only" * r["python_only"]) for r in rows)
        print_table("statistics", ("statistic", "value", ""), cells)


@main.command()
def demo(json: Json = False) -> None:
    """Dump, inspect, rewrite, compile, run an LM and an MLP against vmap; time and temporaries."""
    with reported(json):
        equivalent = show_demo(json)
    if not equivalent:
        raise typer.Exit(REFUSED)


# The list of commands cuts off what it takes from longer texts.
for _info, _line in zip(main.registered_commands, COMMANDS.values(), strict=True):
    _info.short_help = _line
