"""Finished: a module that returns what was made beside its own outputs, and nothing else."""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.emit.main_signature import STATISTIC, set_results
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.normalise.called_functions import release_called
from hlo_surgery.passes.normalise.constraints import put_back
from hlo_surgery.passes.normalise.devices.kernels import call_on_each
from hlo_surgery.passes.normalise.held_constants import release_constants
from hlo_surgery.passes.normalise.per_example_calls import release_bodies
from hlo_surgery.passes.rewriting.analysed import Analysed

FORGET = "func.func(trivial-dce)"


def finished(
    module: Analysed,
    gradients: Sequence[Value | None],
    made: Sequence[Value],
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
    release_bodies(module.code)
    release_called(module.code)
    sharding_rules.strip(module.code)
    release_constants(module.code)
    # What nobody uses would be placed as well.
    mlir.run_passes(module.code, FORGET)
    put_back(module.code)
    call_on_each(module.code)
    mlir.run_passes(module.code, "cse", FORGET)
