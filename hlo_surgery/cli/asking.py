"""Statistics on the command line: `--statistic NAME(ARGUMENTS)` parsed, and the list of all.

How statistics are asked for on the command line: the options of every command that rewrites.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from typer import Option

import hlo_surgery
from hlo_surgery import statistics as room
from hlo_surgery.cli.arguments import (
    parse_batch,
    parse_custom_calls,
    parse_port,
    parse_segments,
)
from hlo_surgery.cli.output import reported
from hlo_surgery.passes.strategies.choice import WAYS
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
        raise ValueError(f"there is no statistic {text!r}; there are {', '.join(known)}")
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
                raise ValueError
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(
            f"--statistic {text!r} is no name and no call; write, for example, mean_sign or "
            "mean_power(3)"
        ) from None


def usage(name: str, maker: Maker) -> str:
    """A call with the parameters' names and defaults, or a bare name where there are none."""
    parameters = inspect.signature(maker).parameters.values()
    each = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    return f"{name}({', '.join(each)})" if each else name


def listed() -> list[dict[str, Any]]:
    """Every statistic: how it is written, the first paragraph of its docstring in one line, and
    whether the command line can.
    """
    return [
        {
            "name": name,
            "usage": usage(name, maker),
            "summary": " ".join((inspect.getdoc(maker) or "").split("\n\n")[0].split()),
            "python_only": name in NEED_A_FUNCTION,
        }
        for name, maker in statistics().items()
    ]


# What the library's functions take, made by `options_of` of the options below: for typer these
# stand in place of a parameter of this type (`rewriting`).
Options = dict[str, Any]


def _options(
    gradient: Annotated[
        list[str] | None,
        Option(
            metavar="OUTPUT",
            help="Output that is a gradient, or tree of them, by name or position; else what is "
            "like the arguments.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        Option(
            metavar="OUTPUT", help="Output that is the loss, where per_example_losses must be told."
        ),
    ] = None,
    loss_reduction: Annotated[
        str, Option(help="How the loss reduces over the examples: mean or sum.")
    ] = "mean",
    on_mixing: Annotated[
        str, Option(help="What to do where examples mix: refuse, or contribution.")
    ] = "refuse",
    is_real: Annotated[
        str | None,
        Option(
            metavar="ARG",
            help="Argument that says which examples are no padding; else all are.",
        ),
    ] = None,
    custom_call: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=AXES:AXES",
            help="Custom call that takes the examples one by one, by its target or kernel: their "
            "axes in its operands and results, such as kernel=0,0,-:0, - for none. Trusted.",
        ),
    ] = None,
    rows_per_example: Annotated[
        int, Option(help="Rows of each example, one behind the other, in batch arguments.")
    ] = 1,
    segments: Annotated[
        list[str] | None,
        Option(
            metavar="ROWS=IDS",
            help="Argument whose rows are the examples' by ids, and the argument with the ids.",
        ),
    ] = None,
    strategy: Annotated[str, Option(help=f"{', '.join(WAYS[:-1])} or {WAYS[-1]}.")] = "auto",
    target: Annotated[
        str | None,
        Option(
            metavar="TARGET",
            help="Device to plan for, such as tpu:v5e; else JAX's own.",
        ),
    ] = None,
) -> None: ...


def rewriting(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a batch and statistics, for typer: it has the options shared by all in place
    of its `options`, which are made of them, and tells what is raised.
    """
    own, shared = inspect.signature(command), inspect.signature(_options).parameters

    def called(**given: Any) -> None:
        how = {name: given.pop(name) for name in shared}
        with reported(given["json"]):
            command(**given, options=options_of(given["batch"], given["statistic"], how))

    spread = [
        q
        for p in own.parameters.values()
        for q in (shared.values() if p.name == "options" else [p])
    ]
    called.__signature__ = own.replace(parameters=spread)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in spread}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def options_of(batch: list[str], statistics: list[str], how: Mapping[str, Any]) -> dict[str, Any]:
    """What the library's functions take, from what the command line gives."""
    rest = {name: given for name, given in how.items() if name not in ("gradient", "custom_call")}
    ports = {name: how[name] and parse_port(how[name]) for name in ("loss", "is_real")}
    return (
        rest
        | ports
        | {
            "batch": parse_batch(batch),
            "statistics": parse_statistics(statistics),
            "custom_calls": parse_custom_calls(how["custom_call"] or []),
            "segments": parse_segments(how["segments"]) if how["segments"] else None,
            "gradients": [parse_port(g) for g in how["gradient"]] if how["gradient"] else None,
        }
    )
