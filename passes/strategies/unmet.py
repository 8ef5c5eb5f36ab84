"""Unmet: why a measure by positions is not to be had of a gradient, and at which line.

%g = add %sum, %c             =>  at the line of %c, which no example is in
%g = add %scattered, %product =>  at that of the scatter, beside which the other use is named
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import reason_at, source_line
from hlo_surgery.passes.measures.kronecker import KroneckerFactor
from hlo_surgery.passes.measures.measure import OfPositions
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path, first_unread
from hlo_surgery.passes.strategies.kronecker.sides import sides_of, unlike_the_first
from hlo_surgery.passes.strategies.task import Task
from hlo_surgery.passes.terms.steps import GradientSlice, Split

TERM_HELP = "leave terms without examples, such as weight decay, to the optimizer"
USES_HELP = (
    "pass the parameter to the loss once for each kind of use, as in loss(w, w), and differentiate "
    "by all of them, as with argnums=(0, 1): each then has factors of its own"
)

BEFORE_HELP = (
    "take the gradient of the examples' mean loss, and not the mean of their gradients, as with "
    "jax.grad(lambda w, x: jnp.mean(jax.vmap(partial(loss, w))(x)))"
)


@dataclass(frozen=True)
class _Unmet:
    """`what` is not as it has to be, made by `op`; `help`: a way out beside the measure's own."""

    op: Operation
    what: str
    help: str = ""


def unmet(task: Task, measure: OfPositions) -> Reason:
    """Why no strategy makes this measure of this gradient."""
    is_complex = isinstance(measure, KroneckerFactor) and mlir.is_complex(task.sliced.value)
    lacking = "complex" if is_complex else "not such a sum"
    why = f"{measure.needs}, and the gradient {task.name} is {lacking}"
    found = _made_before(task) or _term_without_examples(task.sliced) or _unread(task.sliced)
    if found is None and isinstance(measure, KroneckerFactor):
        found = _unlike_uses(task.paths) or _unparted(task)
    if found is not None:
        help = f"{found.help}; or {measure.help}" if found.help else measure.help
        return reason_at(found.op, f"{why}: {found.what}", help)
    op = _first_op(task.sliced)
    if op is None:
        return Reason(why, "func.return", "module", measure.help)
    return reason_at(op, why, measure.help)


def _made_before(task: Task) -> _Unmet | None:
    """What makes each example's own gradient, of which only the sums are left to look at."""
    if task.made_before is None:
        return None
    what = "this makes each example's own, and all that is done to them is to add them up"
    return _Unmet(task.made_before, what, BEFORE_HELP)


def _first_op(sliced: GradientSlice) -> Operation | None:
    return sliced.sites[0].op if sliced.sites else mlir.defining_operation(sliced.value)


def _term_without_examples(sliced: GradientSlice) -> _Unmet | None:
    """What is added that rests on no example, as of a penalty of weights, or on one alone."""
    for step in sliced.steps:
        if step.is_site or step.op.name not in ("stablehlo.add", "stablehlo.subtract"):
            continue
        for value, axis in step.inputs:
            if value not in sliced.made and not is_splat(value, 0):
                op = mlir.defining_operation(value) or step.op
                if isinstance(axis, Split):
                    return _Unmet(op, "this term of it is single examples' alone", BEFORE_HELP)
                return _Unmet(op, "this term of it rests on no example", TERM_HELP)
    return None


def _unread(sliced: GradientSlice) -> _Unmet | None:
    """What is done to a sum besides moving it and scaling it by numbers, or what is no such sum."""
    step = first_unread(sliced)
    if step is None:
        return None
    what = (
        "this is no contraction of whole rows by whole rows"
        if step.is_site
        else "behind the contraction, this does more than move it and scale it by a number"
    )
    return _Unmet(step.op, what)


def _unlike_uses(paths: Sequence[Path]) -> _Unmet | None:
    """A use whose factors are not of the kind of the first one's."""
    odd = unlike_the_first(paths)
    if odd is None:
        return None
    what = (
        "it is used in two ways that have no factors in common, as a table is that is looked up "
        f"and multiplied by; the other way at {source_line(paths[0].site.op)}"
    )
    return _Unmet(odd.site.op, what, USES_HELP)


def _unparted(task: Task) -> _Unmet | None:
    """A use of a part alone, or one whose factors' axes lie among each other."""
    for step in task.sliced.tail:
        if step.op.name == "stablehlo.pad":
            return _Unmet(step.op, "this uses a part of it alone")
    found = [path for path in task.paths if sides_of(path) is None]
    what = "its axes, in the order that they have, are not first those of one factor"
    return _Unmet(found[0].site.op, f"{what} and then those of the other") if found else None
