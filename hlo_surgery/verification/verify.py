"""Verification: a rewritten module held against the original, run on copies of each example.

A batch of B copies of example b has the gradient g_b for a mean loss, and B * g_b for a sum loss.
Whether the examples' gradients exist at all is tested by the mixed second difference: y(x) - y(a
changed) - y(b changed) + y(both changed) vanishes for disjoint sets a and b of examples where y is
a sum of the examples' own contributions.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.emit.export import in_clean_config
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.requests.request import Request, request_by
from hlo_surgery.rewriting.diagnostics import unnamed_text
from hlo_surgery.rewriting.gradient_function import WithStatistics, refuse_others
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.verification.expectations import is_held
from hlo_surgery.verification.inputs import draw_inputs, with_flags
from hlo_surgery.verification.runs import NotFinite, Runs, on_trust, with_reduction
from hlo_surgery.verification.tolerances import Answer, Comparison, Verdict


def verify(verified: Any, /, *args: Any, **kwargs: Any) -> Verdict:
    """Hold statistics against runs of the original on copies of each example.

    `verify(f, *args)` for a function made by `grad`, `value_and_grad` or `rewrite`, which is run on
    `args`. It is run on batches of other sizes, too, made of copies of one example, which tell a
    mean from a sum: where `loss_reduction` says the other, the verdict is "not equivalent".

    `verify(module, batch=...)` for a module, with the keywords of `rewrite_module`, on random
    inputs, or on `inputs`, an array for each argument; of these `loss_reduction` is trusted.
    `seed`: of the random ones.

    With `is_real`, copies stand in the places of the real examples, and padding stays in its own.
    The verdict is "equivalent", "not equivalent", or "not applicable" where copies of an example do
    not give its gradient, and prints with its reason. Raises what the rewriting raises, and
    TypeError for any other function.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.sum((x @ w) ** 2)
    >>> w, x = jnp.ones(3), jnp.eye(4, 3)
    >>> hs.verify(hs.grad(loss, statistics=hs.norms(), loss_reduction="sum"), w, x).verdict
    'equivalent'
    >>> print(hs.verify(hs.grad(loss, statistics=hs.norms()), w, x).why.split(":")[0])
    the loss is a sum over the examples, and not a mean
    """
    if isinstance(verified, WithStatistics):
        return verify_function(verified, *args, **kwargs)
    refuse_others("verify", verified)
    return verify_module(verified, *args, **kwargs)


def verify_module(
    module: Source,
    *,
    inputs: Sequence[Any] | None = None,
    seed: int = 0,
    **keywords: Any,
) -> Verdict:
    """Rewrite a module and hold what it returns against runs of the original, on `inputs` or on
    random ones, as `verify` says.
    """
    original = load(module)
    rewritten = rewrite_module(original, **keywords)
    request = request_by(original, keywords)
    drawn = with_flags(draw_inputs(original.arguments, seed), request) if inputs is None else inputs
    arrays = [np.asarray(a) for a in drawn]
    verdict = _named(original, rewritten, request, arrays)
    if request.size == 1 or verdict.verdict != "equivalent":
        return verdict
    return replace(verdict, why=f"{verdict.why}; {on_trust(request)}, as a module does not tell")


def verify_function(function: WithStatistics, *args: Any, **kwargs: Any) -> Verdict:
    """The same of a function, on its arguments; and whether its loss is reduced as is said."""
    asked, inputs = function.asked(*args, **kwargs)
    original, request = asked.lowered.module, asked.request
    rewritten = function.module(*args, **kwargs)
    verdict = _named(original, rewritten, request, inputs)
    return with_reduction(
        verdict, request, inputs, partial(function.asked_function.of_copies, (args, kwargs))
    )


def _named(original: Module, rewritten: Module, request: Request, inputs: Sequence[Any]) -> Verdict:
    """The verdict, with what outputs were taken for, and all that may be the reason: what was
    trusted, and arguments that copies of an example may lack: with these left in their places, what
    copies give is no example's gradient.
    """
    plan = rewritten.plan
    assert plan is not None
    verdict = verify_rewritten(original, rewritten, request, inputs)
    verdict = replace(verdict, taken=plan.taken())
    if verdict.verdict == "equivalent":
        return verdict
    why = "; ".join([verdict.why, *map(str, plan.trusted)])
    failed = {c.kind for c in verdict.comparisons if not c.passes}
    of_copies = failed and failed <= {"mean of copies", "statistic"}
    unnamed = unnamed_text(original, request) if of_copies else ""
    if not unnamed:
        return replace(verdict, why=why)
    return replace(verdict, verdict="not applicable", why=f"{why}; {unnamed}")


SEGMENTS = (
    "with segments an example has rows of its own number, so that no batch is of copies of one: "
    "hold the statistics against jax.grad of one example's rows"
)


def verify_rewritten(
    original: Module, rewritten: Module, request: Request, inputs: Sequence[Any]
) -> Verdict:
    """The verdict on any module that claims to be the original with statistics, in the order of
    `rewrite_module`.
    """
    if request.ragged is not None:
        return Verdict("not applicable", SEGMENTS)
    data = rewritten.plan.data if rewritten.plan is not None else ()
    try:
        compared = in_clean_config(lambda: Runs(original, request, inputs).compare(rewritten))
    except NotFinite as problem:
        return _judge(problem.comparisons, data, str(problem))
    verdict = _judge(compared, data, "")
    return _without(verdict, [name for name, s in request.statistics.items() if not is_held(s)])


def _without(verdict: Verdict, unheld: Sequence[str]) -> Verdict:
    """The verdict, and what it does not speak of; where there is nothing else, it is that none is
    possible.
    """
    if verdict.verdict != "equivalent" or not unheld:
        return verdict
    others = any(c.kind == "statistic" for c in verdict.comparisons)
    what = (
        f"not verified: {', '.join(unheld)}, of single positions, which the examples' "
        "gradients do not tell"
    )
    return replace(
        verdict,
        verdict="equivalent" if others else "not applicable",
        why=f"{verdict.why}; {what}" if others else what,
    )


def _judge(
    comparisons: tuple[Comparison, ...], data: Sequence[Reason], problem: str = ""
) -> Verdict:
    """Which failure says what: only where copies of an example give its gradient can a statistic be
    called wrong.
    """
    failed = {c.kind: c.name for c in reversed(comparisons) if not c.passes}
    if "output" in failed:
        why = f"{failed['output']} is not what the original returns"
        return Verdict("not equivalent", why, comparisons)
    if data and (problem or failed.keys() - {"statistic"}):
        problem = (
            f"data of the whole batch is taken as constant ({data[0].op} at {data[0].where}), "
            "and copies change it"
        )
    if problem:
        return Verdict("not applicable", problem, comparisons)
    for kind, (answer, says) in SAYS.items():
        if kind in failed:
            return Verdict(answer, says.format(failed[kind]), comparisons)
    why = "the statistics are those of the original's gradients on copies of each example"
    return Verdict("equivalent", why, comparisons)


# What a failure says where all before it in this order passed.
SAYS: dict[str, tuple[Answer, str]] = {
    "second difference": (
        "not equivalent",
        "the original is not separable: sets of examples do not act on {} by a sum",
    ),
    "mean of copies": (
        "not applicable",
        "{} depends on the examples' places in the batch, which copies do not keep",
    ),
    "statistic": ("not equivalent", "{} is not that of the examples' gradients"),
}
