"""How the commands speak: tables or JSON on stdout, errors on stderr, exit codes.

Spelling: what the library says of its keywords, in the words of the command line's options.
"""

import ast
import contextlib
import dataclasses
import json
import opcode
import os
import re
import shlex
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hlo_surgery.cli.supervision import INTERNAL, WRONG_USE
from hlo_surgery.module import Port
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.plan import Plan, plan_table

SAME = """batch loss loss_reduction on_mixing is_real rows_per_example segments strategy
target"""
SPELLED = {
    "batch_argnums": "--batch",
    "statistics": "--statistic",
    "gradients": "--gradient",
    "custom_calls": "--custom-call",
    **{name: f"--{name.replace('_', '-')}" for name in SAME.split()},
}
NAMES = "|".join(SPELLED)
VALUE = r"""\[\.\.\.\]|\[(?:\d+|"(?:[^"\\]|\\.)*"|, )+\]|\.\.\.|"[^"]*"|'[^']*'|[\w.:-]*\w"""
KEYWORD = re.compile(rf"(?<![\w.'\[])({NAMES})=({VALUE})(?: \(--[\w-]+\))?")
SUBJECT = re.compile(rf"^({NAMES})(?= (?:is|must|names|picks|holds|has)\b)")
ARGUMENTS = re.compile(r"\bbatch_argnums\b")


def spelled(message: str) -> str:
    """A message with the options in place of the keywords that it names, quoted for the shell.

    >>> spelled('or pass on_mixing="contribution" to treat such values as constants')
    'or pass --on-mixing contribution to treat such values as constants'
    >>> spelled('pass gradients=["[1]"]')
    "pass --gradient '[1]'"
    >>> spelled("loss_reduction is 'total'; it is one of 'mean', 'sum'")
    "--loss-reduction is 'total'; it is one of 'mean', 'sum'"
    """
    subject = SUBJECT.sub(lambda found: SPELLED[found[1]], message)
    return ARGUMENTS.sub("--batch", KEYWORD.sub(_as_option, subject))


def _as_option(found: re.Match[str]) -> str:
    option, value = SPELLED[found[1]], found[2].strip("'\"")
    if value in ("...", "[...]"):
        return option
    each = ast.literal_eval(value) if found[2].startswith("[") else [value]
    return " ".join(f"{option} {_quoted(str(one))}" for one in each)


def _quoted(text: str) -> str:
    """For the shell; names with quotes of keys within double ones, which are easier to read."""
    return f'"{text}"' if "'" in text and not re.search(r'["$`\\!]', text) else shlex.quote(text)


REFUSED = 1
INTERRUPTED = 130
# What a pipe or a file takes has no edge to fold lines at.
UNBOUNDED = 10_000
# All but tabs and ends of lines.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(stderr: bool = False) -> Console:
    """Colour and the terminal's width where there is one; elsewhere COLUMNS says where to fold."""
    made = Console(stderr=stderr, highlight=False)
    if made.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return made
    return Console(stderr=stderr, highlight=False, width=UNBOUNDED)


@contextlib.contextmanager
def reported(as_json: bool) -> Generator[None]:
    """Turn what the library raises into a message on stderr and an exit code, and what it warns of
    into a message.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except typer.Exit:
        raise
    except Refusal as refusal:
        if as_json:
            keys = ("why", "op", "where", "library", "output", "help")
            print_json({"refusal": {key: spelled(str(getattr(refusal, key))) for key in keys}})
        _fail(spelled(str(refusal)), REFUSED)
    except OSError as problem:
        name = f"{problem.filename}: " if problem.filename else ""
        _fail(f"error: {name}{problem.strerror or problem}", WRONG_USE)
    except jax.errors.JaxRuntimeError as problem:
        _fail(f"error: XLA cannot run this module here: {str(problem).splitlines()[0]}", WRONG_USE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as problem:
        if isinstance(problem, (ValueError, TypeError)) and _is_said(problem):
            _fail(f"error: {spelled(str(problem))}", WRONG_USE)
        _fail(_report(problem), INTERNAL)


def _is_said(problem: Exception) -> bool:
    """Whether this library raised it to tell its user something, or nobody had thought of it."""
    *_, last = _entries(problem)
    code = last.tb_frame.f_code.co_code
    return _is_own(last) and code[last.tb_lasti] == opcode.opmap["RAISE_VARARGS"]


def _entries(problem: Exception) -> Iterator[TracebackType]:
    entry = problem.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_own(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).startswith("hlo_surgery.")


def _report(problem: Exception) -> str:
    """What a bug is called, and the way to it through this library, in one line."""
    entries = list(filter(_is_own, _entries(problem)))[-6:]
    way = " > ".join(f"{Path(e.tb_frame.f_code.co_filename).name}:{e.tb_lineno}" for e in entries)
    what = " ".join(f"{type(problem).__name__}: {problem}".split())
    return f"internal error: {what} (at {way}); please report it, with the command and the module"


def _show_warning(message: Warning | str, *_: Any) -> None:
    print_text(f"warning: {message}", "yellow", stderr=True)


def _fail(message: str, code: int) -> None:
    print_text(message, "red", stderr=True)
    raise typer.Exit(code) from None


def print_json(value: Any) -> None:
    """Strict JSON on stdout: NaN and infinities are null."""
    text = json.dumps(value, default=_as_json)
    typer.echo(json.dumps(json.loads(text, parse_constant=lambda _: None), indent=1))


def _as_json(value: Any) -> Any:
    """Dataclasses by their fields, and what JSON has no form of as text."""
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return str(value)


def print_text(text: str, style: str = "", stderr: bool = False) -> None:
    """A line on stdout, or on stderr."""
    console(stderr).print(Text(printable(text), style=style), soft_wrap=True)


def printable(text: str) -> str:
    """Text with what a terminal would obey, and bytes that are no UTF-8, written as what they are:
    `\\x1b`, `\\udcff`. Names in a module are whatever its author wrote.
    """
    written = CONTROLS.sub(lambda found: rf"\x{ord(found[0]):02x}", text)
    return written.encode(errors="backslashreplace").decode()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table on stdout; the first column is left-aligned names."""
    console().print(made_table(title, columns, rows))


def made_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table whose cells, text or values, are folded where the terminal is narrow."""
    table = Table(title=Text(title), title_justify="left", header_style="bold cyan")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(cell))) for cell in row))
    return table


def print_ports(each: Mapping[str, Sequence[Port]]) -> None:
    """A table each, such as of the arguments and of the outputs of a module."""
    for title, ports in each.items():
        rows = ((i, p.name, p.shape, p.dtype) for i, p in enumerate(ports))
        print_table(title, ("", "name", "shape", "dtype"), rows)


def print_plan(plan: Plan) -> None:
    """What is done for each gradient, its sites with their source lines."""
    table = made_table("", *plan_table(plan))
    if Console(width=UNBOUNDED).measure(table).maximum > console().width:
        print_text(str(plan))
        return
    print_text(plan.head(), "italic")
    for each in plan.notes():
        print_text(each, "yellow")
    console().print(table)
    for each in plan.totals():
        print_text(each)


def summarise(
    ports: Sequence[Port], arrays: Sequence[np.ndarray[Any, Any]]
) -> list[dict[str, Any]]:
    """Each output's name, shape, dtype, least, mean and largest finite entry (or magnitude)."""
    return [
        {"name": port.name, "shape": port.shape, "dtype": str(port.dtype)} | _extremes(array)
        for port, array in zip(ports, arrays, strict=True)
    ]


def _extremes(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    wide = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    found = (np.min, np.mean, np.max) if finite.size else ()
    numbers = [float(number(finite)) for number in found] or [None] * 3
    extremes = dict(zip(("least", "mean", "largest"), numbers, strict=True))
    return extremes | {"not_finite": wide.size - finite.size}


def print_summaries(summaries: Sequence[dict[str, Any]]) -> None:
    """The summaries as a table."""
    columns = ("name", "shape", "dtype", "least", "mean", "largest", "not finite")
    print_table("outputs", columns, (each.values() for each in summaries))


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(str, value)) or "scalar"
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
