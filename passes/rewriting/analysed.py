"""Analysed: a module that has been normalised, with what its values are to the examples.

It is analysed again after contractions have been moved out of loops.

Roles: what the arguments and outputs of a module are.

Undivided outputs: gradients and losses of which examples have no share of their own, and why.

Finished: a module that returns what was made beside its own outputs, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.axes.classify import find_axes
from hlo_surgery.passes.axes.verdicts import constant_terms, undivided_reason, unseen_reason
from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.dataflow.ancestors import ancestors, release_constants
from hlo_surgery.passes.dataflow.kernels import Trusted, trusted
from hlo_surgery.passes.emit.splice import PADDING, STATISTIC, set_results, splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, wide_dtype
from hlo_surgery.passes.ir.errors import Reason, Refusal, as_loss, without_contribution
from hlo_surgery.passes.ir.mlir import Block, Module, Value, Values
from hlo_surgery.passes.loops.hoist import hoist
from hlo_surgery.passes.loops.loop_sums import scanned_gradient
from hlo_surgery.passes.loops.microbatches import find_microbatches
from hlo_surgery.passes.measures.measures import Measure
from hlo_surgery.passes.measures.moments import flags_and_count
from hlo_surgery.passes.normalise.calls import CallAxes, release_functions
from hlo_surgery.passes.normalise.devices import call_on_each
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.normalise.out_of_scope import put_back
from hlo_surgery.passes.structure.unification import Ragged
from hlo_surgery.passes.terms.epilogue import Does, Reading
from hlo_surgery.passes.terms.ragged import find_owners
from hlo_surgery.passes.terms.steps import Axes


@dataclass(frozen=True)
class Roles:
    """What arguments and outputs are, by number. `batch`: the examples' axis by argument.

    `contribution`: whether all that is mixed counts as constant. `custom_calls`: what is declared
    of some. `pruned`: whether what no output needs may have been left out of the module. `ragged`:
    the axes of arguments along which ids tell whose each row is.
    """

    batch: Mapping[int, int]
    size: int
    gradients: Sequence[int]
    losses: Sequence[int]
    contribution: bool
    custom_calls: CallAxes = field(default_factory=dict[str, Any])
    pruned: bool = False
    ragged: Ragged | None = None


@dataclass
class Analysed:
    """A module in place; `axes` says how its values hold the examples, `data` which constants were
    made of the batch, `trusted` what was declared of calls.
    """

    code: Module
    roles: Roles
    axes: Axes
    trusted: Sequence[Trusted] = ()

    @property
    def block(self) -> Block:
        """The body of main."""
        return mlir.body(mlir.main_function(self.code))

    @property
    def outputs(self) -> Values:
        """What main returns."""
        return mlir.operands(mlir.return_operation(self.block))

    @property
    def gradients(self) -> Values:
        """The outputs that are."""
        outputs = self.outputs
        return [outputs[number] for number in self.roles.gradients]


def analyse(
    code: Module,
    roles: Roles,
    names: Sequence[str],
    reweights: bool,
    measures: Sequence[Measure] = (),
) -> Analysed:
    """Normalise a module in place, classify its values, and free it of loops; `names`: of outputs,
    `measures`: of what is asked of the gradients.

    Raises Refusal for what is no program on static arrays, and where examples have no share of an
    output.
    """
    module, undivided = _normalised(code, roles)
    if undivided:
        first, *others = undivided
        more = f" (and {len(others)} more)" if others else ""
        raise Refusal(undivided[first], names[first] + more)
    # Contractions leave scans only where weights behind need it, or what is asked of a stack is not
    # all had inside.
    if roles.size > 1:
        _hoist_everywhere(module, stacks=False)
        if reweights or not _are_stackable(module, measures):
            _hoist_everywhere(module, stacks=True)
    _keep_what_concerns(module)
    return module


def refused_outputs(code: Module, roles: Roles) -> dict[int, Reason]:
    """Why examples have no share of their own, by number of all outputs where they have none; the
    module is normalised in place. Raises Refusal for what is no program on static arrays.
    """
    return _normalised(code, roles)[1]


def _normalised(code: Module, roles: Roles) -> tuple[Analysed, dict[int, Reason]]:
    """A module in normal form, classified, and which outputs are not divided. What to do on mixing
    is asked where examples mix alone.
    """
    normalize(code, roles.custom_calls)
    strict = replace(roles, contribution=False)
    module = Analysed(code, strict, _classified(code, strict))
    undivided = undivided_outputs(module)
    if undivided and roles.contribution:
        module = Analysed(code, roles, _classified(code, roles))
        undivided = undivided_outputs(module)
    return module, undivided


def undivided_outputs(module: Analysed) -> dict[int, Reason]:
    """Why examples have no share of their own, by number of the outputs where they have none."""
    roles, state, block, outputs = module.roles, module.axes.state, module.block, module.outputs
    if roles.size == 1:
        return {}
    terms = {n: constant_terms(state, outputs[n]) for n in [*roles.gradients, *roles.losses]}
    found = {n: undivided_reason(state, block, outputs[n], own) for n, own in terms.items()}
    if roles.pruned:
        asked = (state, block, roles.gradients, roles.size)
        found |= {n: found[n] or unseen_reason(*asked, terms[n]) for n in roles.gradients}
    reasons = {n: reason for n, reason in found.items() if reason}
    reasons |= {n: as_loss(reasons[n]) for n in roles.losses if n in reasons}
    without = roles.contribution
    return {n: without_contribution(r) for n, r in reasons.items()} if without else reasons


def _classified(code: Module, roles: Roles) -> Axes:
    kernels.populate(code)
    main = mlir.main_function(code)
    asked = (main, roles.batch, roles.size, roles.gradients, roles.contribution)
    state = find_axes(*asked, roles.ragged)
    axes = Axes(state, tuple(state.batch), roles.size)
    find_owners(axes)
    return axes


def _hoist_everywhere(module: Analysed, *, stacks: bool) -> None:
    """Move contractions out of loops, and of those in the steps of microbatches."""
    _hoist(module, module.axes, module.block, module.gradients, stacks)
    steps = find_microbatches(module.axes, module.gradients)
    if steps:
        _hoist(module, steps.axes, steps.body, steps.nest[-1].values, stacks)


def _hoist(module: Analysed, axes: Axes, block: Block, values: Values, stacks: bool) -> None:
    if hoist(axes, block, values, stacks=stacks):
        module.axes = _classified(module.code, module.roles)


def _are_stackable(module: Analysed, measures: Sequence[Measure]) -> bool:
    """Whether scans can stack all measures. Those in steps scale what they stack: each step's mean
    is of fewer examples.
    """
    steps = find_microbatches(module.axes, module.gradients)
    outer = [scanned_gradient(module.axes, value) for value in module.gradients]
    inner = [scanned_gradient(steps.axes, v) for v in steps.nest[-1].values] if steps else []
    stacks = [(scan, scan.behind) for scan in outer if scan]
    stacks += [(s, [*s.behind, Reading(s.write, (1,), Does.SCALES)]) for s in inner if s]
    return all(m.is_stackable(behind, scan.write) for scan, behind in stacks for m in measures)


def _keep_what_concerns(module: Analysed) -> None:
    """Forget constants and declared calls that no gradient or loss that is asked for rests on."""
    state, outputs, roles = module.axes.state, module.outputs, module.roles
    declared = [(op, said) for op in mlir.all_operations(module.code) if (said := trusted(op))]
    asked = [outputs[number] for number in [*roles.gradients, *roles.losses]]
    behind = ancestors(asked) if state.data or declared else set()
    state.data = {value: reason for value, reason in state.data.items() if value in behind}
    calls = [said for op, said in declared if not behind.isdisjoint(op.results)]
    module.trusted = list(dict.fromkeys(calls))


def real_examples(module: Analysed, argument: int) -> tuple[Value, Value]:
    """The values that say which examples are no padding, [B], and how many, by the flags of an
    argument.
    """
    # Numbers lose nothing beside gradients in float32, or in float64 where these are, whether or
    # not JAX has 64 bits enabled here.
    wide = map(wide_dtype, map(dtype_of, module.gradients))
    dtype = jnp.finfo(reduce(jnp.promote_types, wide, np.dtype(np.float32))).dtype
    block = module.block
    flags, count = splice(
        [block.arguments[argument]],
        partial(flags_and_count, dtype),
        mlir.operations(block)[0],
        scope=PADDING,
    )
    module.axes.count = count
    return flags, count


FORGET = "func.func(trivial-dce)"


def finished(
    module: Analysed,
    gradients: Sequence[Value | None],
    made: Values,
    labels: Sequence[str],
) -> None:
    """Return the module's own outputs, `gradients` from where they were had anyway, and behind them
    what was `made`, by its labels; and tidy up.
    """
    found = zip(module.roles.gradients, gradients, strict=False)
    had = {number: value for number, value in found if value is not None}
    results = [had.get(number, value) for number, value in enumerate(module.outputs)]
    names = [{"jax.result_info": label, STATISTIC: label} for label in labels]
    set_results(mlir.main_function(module.code), [*results, *made], names)
    release_functions(module.code)
    kernels.strip(module.code)
    release_constants(module.code)
    # What nobody uses would be placed as well.
    mlir.run_passes(module.code, FORGET)
    put_back(module.code)
    call_on_each(module.code)
    mlir.run_passes(module.code, "cse", FORGET)
