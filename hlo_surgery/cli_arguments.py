"""What the commands take: `--batch ARG[:AXIS]`, `--statistic NAME(...)` and the rest, as types and parsed."""

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from hlo_surgery.statistics import Statistic, mean_abs, mean_power, mean_sign, per_example, second_moment

File = Annotated[
    str, typer.Argument(metavar="FILE", help="MLIR text or bytecode, a portable or a jax.export artifact; - for stdin.")
]
Batch = Annotated[
    list[str],
    typer.Option(
        "--batch", metavar="ARG[:AXIS]", help="Argument with the examples, by name or position; axis 0 if left out."
    ),
]
Statistics = Annotated[
    list[str],
    typer.Option("--statistic", metavar="NAME", help="second_moment, mean_sign, mean_abs, mean_power(K), per_example."),
]
Gradients = Annotated[
    list[str] | None,
    typer.Option(
        "--gradient", metavar="OUTPUT", help="Output that is a gradient, by name or position; else all floats."
    ),
]
LossReduction = Annotated[str, typer.Option(help="How the loss reduces over the examples: mean or sum.")]
OnMixing = Annotated[str, typer.Option(help="What to do where examples mix: refuse, or contribution.")]
Strategy = Annotated[str, typer.Option(help="auto, square, lift or loop.")]
Inputs = Annotated[
    str | None, typer.Option("--inputs", metavar="NPZ", help="Arrays by argument name, or arg0, arg1...; else random.")
]
Seed = Annotated[int, typer.Option(help="Of the random inputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

STATISTICS: dict[str, Callable[..., Statistic]] = {
    made.__name__: made for made in (second_moment, mean_sign, mean_abs, mean_power, per_example)
}


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


def parse_port(text: str) -> str | int:
    """A position where it is an integer, else a name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def parse_statistics(given: Sequence[str]) -> dict[str, Statistic]:
    """Statistics by their own names. Raises ValueError for what is none.

    >>> list(parse_statistics(["second_moment", "mean_power(3)"]))
    ['second_moment', 'mean_power(3)']
    """
    made = [_parse_statistic(text) for text in given]
    return {statistic.name: statistic for statistic in made}


def _parse_statistic(text: str) -> Statistic:
    name, arguments = _call(text)
    if name not in STATISTICS:
        raise ValueError(f"there is no statistic {text!r}; there are {', '.join(map(_usage, STATISTICS))}")
    try:
        inspect.signature(STATISTICS[name]).bind(*arguments)
    except TypeError:
        raise ValueError(f"--statistic {text!r} does not fit; write {_usage(name)}") from None
    return STATISTICS[name](*arguments)


def _call(text: str) -> tuple[str, list[Any]]:
    """The name and the literal arguments of `name` or `name(1, 2)`; nothing is evaluated."""
    found = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    if found is None:
        return text, []
    try:
        return found[1], list(ast.literal_eval(f"[{found[2] or ''}]"))
    except (ValueError, SyntaxError):
        raise ValueError(f"the arguments in --statistic {text!r} are no numbers; write e.g. mean_power(3)") from None


def _usage(name: str) -> str:
    """`mean_power` -> `mean_power(K)`."""
    parameters = inspect.signature(STATISTICS[name]).parameters
    return f"{name}({', '.join(parameters).upper()})" if parameters else name
