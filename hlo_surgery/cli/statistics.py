"""Statistics on the command line: `--statistic NAME(ARGUMENTS)` parsed, and the list of all."""

import ast
import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import hlo_surgery
from hlo_surgery import statistics as room
from hlo_surgery.cli.output import print_table
from hlo_surgery.statistics.derived import Statistic

INFINITE = ("inf", "float('inf')")
Maker = Callable[..., Statistic]
NEED_A_FUNCTION = (
    "mean_of",
    "sum_of",
    "linear_combination",
    "second_moment_in",
    "weighted_mean",
    "weighted_second_moment",
)


def statistics() -> dict[str, Maker]:
    """The public functions that make statistics, by name."""
    public = {name: getattr(hlo_surgery, name) for name in hlo_surgery.__all__}
    return {name: f for name, f in public.items() if f.__module__.startswith(f"{room.__name__}.")}


def parse_statistics(given: Sequence[str]) -> dict[str, Statistic]:
    """Statistics by what was written. Raises ValueError for what is none.

    >>> list(parse_statistics(["second_moment", "norms('parameter', ord=1)"]))
    ['second_moment', "norms('parameter', ord=1)"]
    """
    return {text.strip().removesuffix("()"): _parse_statistic(text) for text in given}


def _parse_statistic(text: str) -> Statistic:
    name, call = _call(text)
    known = statistics()
    if name not in known:
        close = get_close_matches(name, known, n=1, cutoff=0.75)
        meant = f"did you mean {close[0]}? There" if close else "there"
        raise ValueError(f"there is no statistic {text!r}; {meant} are {', '.join(known)}")
    if name in NEED_A_FUNCTION:
        raise ValueError(
            f"{name} takes a function, other statistics or arrays; use it from Python, as "
            f"hlo_surgery.{name}"
        )
    try:
        arguments = [_plain(a) for a in call.args]
        keywords = {str(k.arg): _plain(k.value) for k in call.keywords}
    except ValueError:
        how = f"write {usage(name, known[name])} with numbers, text, lists or dicts"
        raise ValueError(
            f"the arguments in --statistic {text!r} are no plain values; {how}"
        ) from None
    try:
        return known[name](*arguments, **keywords)
    except (TypeError, OverflowError) as problem:
        raise ValueError(
            f"--statistic {text!r} does not fit: {problem}; write {usage(name, known[name])}"
        ) from None


def _plain(argument: ast.expr) -> Any:
    """The value of an argument. Python has no literal for what is infinite."""
    is_infinite = ast.unparse(argument) in INFINITE
    return float("inf") if is_infinite else ast.literal_eval(argument)


def _call(text: str) -> tuple[str, ast.Call]:
    """The name in `name` or `name(1, x=2)`, and the call. Nothing is evaluated."""
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Name(name) as bare:
                return name, ast.Call(bare, [], [])
            case ast.Call(ast.Name(name)) as call:
                return name, call
            case _:
                pass
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    raise ValueError(
        f"--statistic {text!r} is no name and no call; write, for example, mean_sign or "
        "mean_power(3)"
    )


def usage(name: str, maker: Maker) -> str:
    """A call with the parameters' names and defaults, or a bare name where there are none."""
    parameters = inspect.signature(maker).parameters.values()
    each = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    return f"{name}({', '.join(each)})" if each else name


def listed() -> list[dict[str, Any]]:
    """Every statistic: how it is written, what it is, and whether the command line can."""
    return [
        {
            "name": name,
            "usage": usage(name, maker),
            "summary": _first_paragraph(maker),
            "python_only": name in NEED_A_FUNCTION,
        }
        for name, maker in statistics().items()
    ]


def _first_paragraph(maker: Callable[..., Any]) -> str:
    """What a statistic's docstring begins with, in one line."""
    return " ".join((inspect.getdoc(maker) or "").split("\n\n")[0].split())


def print_statistics(rows: Sequence[dict[str, Any]]) -> None:
    """The list as a table."""
    cells = (
        (row["usage"], row["summary"], "Python only" if row["python_only"] else "") for row in rows
    )
    print_table("statistics", ("statistic", "value", ""), cells)
