"""Verdicts of the analysis alone: nothing is planned, emitted or compiled."""

import jax

from hlo_surgery.module import load
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.verdicts import undivided_reason


def reasons(function, *arguments, batch=(1,), contribution=False, axis=0):
    """Why each output of a gradient function is refused; `batch`: arguments with the examples along
    `axis`.
    """
    text = jax.jit(function, keep_unused=True).lower(*arguments).as_text(debug_info=True)
    return reasons_in(text, axes_of(arguments, batch, axis), contribution)


def axes_of(arguments, batch, axis=0):
    """The axis of the examples by the number of the module's argument."""
    leaves = [i for i, tree in enumerate(arguments) for _ in jax.tree.leaves(tree)]
    return {number: axis for number, i in enumerate(leaves) if i in batch}


def reasons_in(text, axes, contribution=False):
    """The same of a module, with the axes of its arguments."""
    code = mlir.clone(load(text).code)
    normalize(code)
    main = mlir.main_function(code)
    block = mlir.body(main)
    first, axis = next(iter(axes.items()))
    size = mlir.shape(block.arguments[first])[axis]
    outputs = mlir.operands(mlir.return_operation(block))
    sharding_rules.populate(code)
    owners = find_owners(main, axes, size, range(len(outputs)), contribution)
    asked = ancestors(outputs)
    return [undivided_reason(owners, block, output, asked) for output in outputs]
