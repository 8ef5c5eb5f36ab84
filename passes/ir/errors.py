"""What goes wrong, as exceptions: a refusal names the op, the source line, why, and the way out."""

from dataclasses import dataclass, replace

CONTRIBUTION_HELP = '; or pass on_mixing="contribution" to treat such values as constants'
MIXING_HELP = (
    "make every example's gradient its own (running statistics, GroupNorm, a per-example loss)"
    "; mark what the loss takes as given with hs.constant, in place of stop_gradient"
    f"{CONTRIBUTION_HELP}"
)
# Of sums that a loop over parts of the batch carries on, as parameters that each step updates.
STEPS_HELP = (
    "call hs.grad, or the rewritten function, within the step, and return its statistics from "
    "there: they are those of the step's examples, at the step's parameters"
)
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
    "an argument, one for each example as a batch argument; of experts, dispatch densely, so that "
    f"tokens stay in their rows{CONTRIBUTION_HELP}"
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
    'iterations are declared parallel (dimension_semantics=("parallel",)) or keep nothing from '
    f"one to the next, in scratch memory or in a block that stays; else, {CALL_HELP}"
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

    def _text(self) -> str:
        within = f" (in {self.library})" if self.library else ""
        lines = [f"{self.where}{within}: refused: {self.op}: {self.why}"]
        if self.output:
            lines.append(f"  output:  {self.output}")
        return "\n".join([*lines, f"  help:    {self.help}"])
