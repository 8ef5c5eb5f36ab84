"""How statistics are asked for on the command line: the options of every command that rewrites."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from hlo_surgery.cli.arguments import (
    parse_batch,
    parse_custom_calls,
    parse_port,
)
from hlo_surgery.cli.statistics import parse_statistics
from hlo_surgery.planning.options import WAYS

Gradients = Annotated[
    list[str] | None,
    typer.Option(
        "--gradient",
        metavar="OUTPUT",
        help="Output that is a gradient, or tree of them, by name or position; else what is like "
        "the arguments.",
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        metavar="OUTPUT", help="Output that is the loss, where per_example_losses must be told."
    ),
]
LossReduction = Annotated[
    str, typer.Option(help="How the loss reduces over the examples: mean or sum.")
]
OnMixing = Annotated[
    str, typer.Option(help="What to do where examples mix: refuse, or contribution.")
]
IsReal = Annotated[
    str | None,
    typer.Option(
        "--is-real",
        metavar="ARG",
        help="Argument that says which examples are no padding; else all are.",
    ),
]
CustomCalls = Annotated[
    list[str] | None,
    typer.Option(
        "--custom-call",
        metavar="NAME=AXES:AXES",
        help="Custom call that takes the examples one by one, by its target or kernel: their axes "
        "in its operands and results, such as kernel=0,0,-:0, - for none. Trusted.",
    ),
]
RowsPerExample = Annotated[
    int, typer.Option(help="Rows of each example, one behind the other, in batch arguments.")
]
Segments = Annotated[
    list[str] | None,
    typer.Option(
        "--segments",
        metavar="ARG=IDS",
        hidden=True,
        help="Refused: rows that belong to examples by ids are not taken.",
    ),
]
Strategy = Annotated[str, typer.Option(help=f"{', '.join(WAYS[:-1])} or {WAYS[-1]}.")]
MemoryBudget = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Temporaries for one gradient's statistics, such as 64MB."),
]
PlannedTarget = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="TARGET", help="Device to plan for, such as tpu:v5e; else JAX's own."
    ),
]
ReuseGradient = Annotated[
    bool | None,
    typer.Option(
        help="Take gradients from each example's, or keep their ops; else what is cheaper."
    ),
]
Shards = Annotated[int | None, typer.Option(help="Over how many devices the examples will lie.")]

# What the options below were given as, by name; `taking_how` puts the options in place of a
# parameter of this type.
How = dict[str, Any]


def _options(
    gradient: Gradients = None,
    loss: Loss = None,
    loss_reduction: LossReduction = "mean",
    on_mixing: OnMixing = "refuse",
    is_real: IsReal = None,
    custom_call: CustomCalls = None,
    rows_per_example: RowsPerExample = 1,
    segments: Segments = None,
    strategy: Strategy = "auto",
    memory_budget: MemoryBudget = None,
    target: PlannedTarget = None,
    reuse_gradient: ReuseGradient = None,
    shards: Shards = None,
) -> None: ...


def taking_how(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `how` collects the options shared by all, for typer."""
    own, shared = inspect.signature(command), inspect.signature(_options).parameters

    def called(**given: Any) -> None:
        command(
            **{n: x for n, x in given.items() if n not in shared}, how={n: given[n] for n in shared}
        )

    spread = [
        q for p in own.parameters.values() for q in (shared.values() if p.name == "how" else [p])
    ]
    called.__signature__ = own.replace(parameters=spread)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in spread}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def options_of(batch: list[str], statistics: list[str], how: Mapping[str, Any]) -> dict[str, Any]:
    """What the library's functions take, from what the command line gives."""
    own = ("gradient", "memory_budget", "custom_call", "segments")
    rest = {name: given for name, given in how.items() if name not in own}
    return rest | {
        "batch": parse_batch(batch),
        "statistics": parse_statistics(statistics),
        "loss": parse_port(how["loss"]) if how["loss"] is not None else None,
        "is_real": None if how["is_real"] is None else parse_port(how["is_real"]),
        "custom_calls": parse_custom_calls(how["custom_call"] or []),
        "segments": how["segments"],
        "gradients": [parse_port(g) for g in how["gradient"]] if how["gradient"] else None,
        "memory_budget": parse_bytes(how["memory_budget"]),
    }


def parse_bytes(text: str | None) -> int | None:
    """A number of bytes with an optional unit. Raises ValueError for anything else.

    >>> parse_bytes("64MB"), parse_bytes("4096")
    (64000000, 4096)
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+) *([kMGT]?)B?", text)
    if not found:
        raise ValueError(f"{text!r} is no number of bytes; write 4096, 64MB or 2GB")
    return int(found[1]) * 1000 ** " kMGT".index(found[2] or " ")
