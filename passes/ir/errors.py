"""What goes wrong, as exceptions: a refusal names the op, the source line, why, and the way out.

Source lines: given an op's location, the user's file and line. Read from typed locations, never
from text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, ir

CONTRIBUTION_HELP = '; or pass on_mixing="contribution" to treat such values as constants'
GIVEN_HELP = (
    "mark what the loss takes as given with hs.constant, in place of stop_gradient"
    f"{CONTRIBUTION_HELP}"
)
MIXING_HELP = (
    "make every example's gradient its own (running statistics, GroupNorm, a per-example loss); "
    f"{GIVEN_HELP}"
)
# Of rows of several examples in one axis.
ROWS_HELP = (
    "of tokens sorted by expert, graphs and other rows that indices tell apart, pass segments=... "
    "(docs/guides/segments.md)"
)
# Of sums that a loop over parts of the batch carries on, as parameters that each step updates.
STEPS_HELP = (
    "call hs.grad, or the rewritten function, within the step, and return its statistics from "
    "there: they are those of the step's examples, at the step's parameters"
)
# Of what is added up on top of such a sum, by the op that adds it up.
ONTO_HELP = "add up from zeros, and add the sums behind: zeros.at[i].add(x) + total"
# Of examples that a program takes one by one.
APART_HELP = (
    "go over examples or groups of them with jax.vmap or jax.lax.map, and not with a Python loop; "
    "pass what differs from one to another as a batch argument"
)
# Of loops and branches that several examples decide on.
DECIDED_HELP = (
    "let each example decide for itself: take them one at a time, with jax.lax.map in place of "
    f"jax.vmap{CONTRIBUTION_HELP}"
)
# Of data of the batch that each example meets at a place of its own, marked as a constant or not.
DATA_HELP = (
    "compute what is made of the whole batch before the call, and pass it: one number for all as "
    f"an argument, one for each example as a batch argument; {ROWS_HELP}{CONTRIBUTION_HELP}"
)
# Of sums over the examples that meet nothing else, as gradients do where they are clipped.
OUTSIDE = (
    "clip, guard, normalise or apply gradients outside, once the function has returned them, or "
    "have them by hs.grad within it"
)
SUMS_HELP = (
    f"{OUTSIDE}; of a loss, take the mean itself, and what is made of it, as its root, outside; "
    f"else {MIXING_HELP}"
)
# Of a test of such a sum for NaN, as some libraries guard the mean of the losses by.
NAN_HELP = (
    f"{OUTSIDE}; of a loss that guards its mean, take each example's loss and their mean instead "
    f"(of optax's ranking losses, with reduce_fn=None){CONTRIBUTION_HELP}"
)
# Of such sums where they make a loss, whose gradient may be had all the same.
LOSS_HELP = (
    "write the loss as a sum or mean of one term for each example, or ask for statistics without "
    f"per_example_losses{CONTRIBUTION_HELP}"
)

# Of calls to what is not StableHLO, of which nothing shows.
CALL_HELP = (
    "if it takes the examples one by one, say so: hs.per_example_call(fn, in_axes, out_axes) "
    "around the function that calls it, and around its backward pass; of a dumped module, "
    "custom_calls=... with the call's name"
)
# Of a call whose kernel may show it.
KERNEL_HELP = (
    "a TPU kernel shows it where each block holds one example, at the grid's own index, and its "
    'iterations are declared parallel (dimension_semantics=("parallel",)), as jax.vmap does of '
    f"those that it adds; else, {CALL_HELP}"
)
# Of such a call of which that was said.
DECLARED_HELP = (
    "give each operand and result with examples their axis, None being for what is one for all; "
    "what all examples share may go in, but a sum over them, as a weight's gradient is, may not "
    "come out: multiply by weights outside"
)


@dataclass(frozen=True)
class Reason:
    """Why a value is no sum of the examples' contributions, and where in the program that arose.

    `op` is the StableHLO op, `where` the user's source line (or the line of the module where no
    debug info is left), `library` that of the library which was called there, if one was.
    """

    why: str
    op: str
    where: str
    help: str = MIXING_HELP
    library: str = ""


def without_contribution(reason: Reason) -> Reason:
    """The reason where such values are treated as constants already, or cannot be."""
    return replace(reason, help=reason.help.replace(CONTRIBUTION_HELP, ""))


def is_of_sums(reason: Reason) -> bool:
    """Whether sums over the examples meet nothing but sums, as gradients do that are clipped."""
    return reason.help in (SUMS_HELP, NAN_HELP)


def as_loss(reason: Reason) -> Reason:
    """The reason with the way out of a loss, where it has that of gradients."""
    return replace(reason, help=LOSS_HELP) if reason.help == SUMS_HELP else reason


class Refusal(Exception):
    """The statistic is not defined here, or cannot be proved exact: never answered by a number.

    Attributes: `why` (the reason), `op` (the StableHLO op), `where` (the user's source line),
    `library` (that of a library that is called there, or ""), `output` (the outputs concerned),
    `help` (the way out).

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> try:
    ...     hs.grad(lambda w, x: jnp.max(w * x), statistics=hs.norms())(1.0, jnp.arange(4.0))
    ... except hs.Refusal as refusal:
    ...     print(refusal.op)
    stablehlo.reduce
    """

    # Where a user finds it, and so what tracebacks and pickles name.
    __module__ = "hlo_surgery"

    def __init__(self, reason: Reason, output: str = "") -> None:
        self.why, self.op, self.where, self.help = reason.why, reason.op, reason.where, reason.help
        self.library, self.output = reason.library, output
        self._arguments = (reason, output)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type["Refusal"], tuple[Reason, str]]:
        # An exception is copied and pickled by its text alone, unless it says of what it was made.
        return type(self), self._arguments

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        return f"<pre>{escape(str(self))}</pre>"

    def _text(self) -> str:
        within = f" (in {self.library})" if self.library else ""
        lines = [f"{self.where}{within}: refused: {self.op}: {self.why}"]
        if self.output:
            lines.append(f"  output:  {self.output}")
        return "\n".join([*lines, f"  help:    {self.help}"])


Frame = tuple[str, int]
INLINED = "inlined"
# How JAX names the functions that are a loop's steps.
STEP = "closed_call"
PACKAGES = ("site-packages", "dist-packages")
# What this library puts around a user's own function, which is no line of anybody's.
WRAPPERS = (("hlo_surgery", "requests", "declaring.py"), ("hlo_surgery", "torch"))
# Where Keras calls JAX's ops, which says nothing of the layer that did.
DISPATCH = (("keras", "src", "backend"), ("keras", "src", "ops"))


def source_line(op: Operation) -> str:
    """The user's `model.py:41`, or the op's line in the module where no debug info is left."""
    frames = _frames(cast(Any, op.location))
    if not frames:
        return "module (no debug info)"
    own = [f for f in frames if not _is_installed(f[0])]
    path, line = (own or frames)[0]
    return f"{'module' if path == '-' else path}:{line}"


def reason_at(op: Operation, why: str, help: str = MIXING_HELP) -> Reason:
    """Why not, at the op's line, and at that of the library that was called there."""
    return Reason(why, op.name, source_line(op), help, _library_line(op))


def _library_line(op: Operation) -> str:
    """`flax/linen/normalization.py:112`, where an installed library's line made the op; else ""."""
    frames = _frames(cast(Any, op.location))
    installed = list(takewhile(lambda frame: _is_installed(frame[0]), frames))
    if len(installed) in (0, len(frames)):
        return ""
    path, line = next((f for f in installed if not _is_dispatch(f[0])), installed[0])
    parts = Path(path).parts
    within = max(i for i, part in enumerate(parts) if part in PACKAGES)
    return f"{'/'.join(parts[within + 1 :])}:{line}"


def _is_dispatch(path: str) -> bool:
    """Whether a library's file only calls an array library's op, whichever that is."""
    return _lies_in(Path(path).parts, DISPATCH)


def _lies_in(parts: tuple[str, ...], folders: Sequence[tuple[str, ...]]) -> bool:
    return any(f == parts[i : i + len(f)] for f in folders for i in range(len(parts)))


def inlined_location(op: Operation, call: Operation) -> ir.Location:
    """The location of an op that replaces a call, which remembers both. What JAX calls for each
    step of a loop is written at one place, and its ops keep that.
    """
    if mlir.text_attribute(call, "callee").startswith(STEP) and _frames(op.location):
        return op.location
    with mlir.context():
        return ir.Location.name(INLINED, ir.Location.callsite(op.location, [call.location]))


def _frames(location: Any) -> list[Frame]:
    """File and line of each frame, innermost first."""
    read: list[Frame] = []
    while isinstance(location, ir.CallSiteLoc):
        read += _frames(location.callee)
        location = location.caller
    match location:
        case ir.FileLineColLoc() if not _is_wrapper(str(location.filename)):
            return [*read, (str(location.filename), int(location.start_line))]
        case ir.NameLoc() if location.name_str == INLINED:
            inlined: Any = location.child_loc
            return [*read, *_of_inlined(_frames(inlined.callee), _frames(inlined.caller))]
        case ir.NameLoc():
            return [*read, *_frames(location.child_loc)]
        case ir.FusedLoc():
            return [*read, *(frame for each in location.locations for frame in _frames(each))]
        case _:
            return read


def _of_inlined(callee: list[Frame], call: list[Frame]) -> list[Frame]:
    """The callee's frames where they lead to this call; else the call's.

    JAX traces a jitted function once, and its ops keep the frames of the first call for all later
    ones.
    """
    meet = [j for j, frame in enumerate(callee) if frame in call[:1]]
    leads_here = any(callee[j:] == call[: len(callee) - j] for j in meet)
    return callee if leads_here or not call else call


# Asked for each op that is inlined, of a few files.
@cache
def _is_wrapper(path: str) -> bool:
    return _lies_in(Path(path).parts, WRAPPERS)


def _is_installed(path: str) -> bool:
    """Whether the file is an installed library's, so that the user's own frame says more."""
    return any(part in PACKAGES for part in Path(path).parts)
