"""Alike: gradients whose slices have one form share one traced function, called for each of them.

%h, %l of this layer, or of the next    =>    (%0, %1): %2 = dot_general %0, %1 over b
%m = dot_general %h, %l over b                          %3 = transpose %2
%g = transpose %m                                       return %3, %2, %0, %1

The function is traced of a copy, which has the slices' ops, without locations, and zeros; all else
is an argument of it. So nothing goes into it but the copy's text, which returns each value that the
task names, in order, and that task with numbers in place of these: together they are the key.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import jax
from jax import Array

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.emit.rebuild import copy_all, extend_return
from hlo_surgery.passes.emit.splice import Scope
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, Values, ir
from hlo_surgery.passes.strategies.lift import LIFT, LOOP, weighted_by_example
from hlo_surgery.passes.strategies.strategy import Asked, Chosen, Computed, Examples, Strategy, Task
from hlo_surgery.passes.terms.steps import GradientSlice, Known, Place, Split, Step

# What values of the module are in; of anything else two are the same if they are equal.
HOLDING = Asked, Chosen, Task, Examples, GradientSlice, Step, Split, Place


def emitted(
    strategy: Strategy, asked: Sequence[Asked], known: Known, calls: dict[Any, Any]
) -> list[Computed]:
    """What a strategy emits for gradients that it takes together. `calls`: functions that this
    program has traced before, by all that they rest on.
    """
    steps = [step for one in asked for step in one.task.sliced.steps]
    # A kernel would need einsums.
    ruled = all(o.chosen.weighting is weighted_by_example for o in asked)
    if strategy not in (LIFT, LOOP) or not ruled or any(mlir.captured(s.op) for s in steps):
        return strategy.emit(asked, known)
    bare = tuple(map(_bare, asked))
    numbers: dict[Value, int] = {}
    shown = _renamed(bare, lambda value: numbers.setdefault(value, len(numbers)))
    code, copies = _copy(steps, list(numbers))
    given = [value for value in numbers if value in known]

    def alike_gradients(*arrays: Array) -> list[Computed]:
        own = _renamed(bare, copies.__getitem__)
        return strategy.emit(own, dict(zip((copies[v] for v in given), arrays, strict=True)))

    key = (strategy, shown, mlir.to_bytecode(code), *map(numbers.get, given))
    # What is of the copy does not keep it alive.
    call, _ = calls.setdefault(key, (jax.jit(alike_gradients), code))
    return call(*map(known.get, given))


def _bare(one: Asked) -> Asked:
    """The same without what would tell gradients apart, and is not looked at: who does fails."""
    nothing: Any = None
    task = replace(one.task, name="", einsums=nothing, made_before=nothing)
    chosen = replace(one.chosen, task=task, strategies=nothing, predicted=nothing)
    return Asked(chosen, tuple(one.measures))


def _renamed(x: Any, name: Callable[[Value], Any]) -> Any:
    """The same of other values, and of the ops that make these."""
    if isinstance(x, ir.Value):
        return name(x)
    if isinstance(x, Operation):
        made = name(x.results[0])
        return mlir.defining_operation(made) if isinstance(made, ir.Value) else made
    if isinstance(x, HOLDING):
        return replace(x, **{f.name: _renamed(getattr(x, f.name), name) for f in fields(x)})
    return tuple(_renamed(each, name) for each in x) if isinstance(x, tuple) else x


def _copy(steps: Sequence[Step], values: Values) -> tuple[mlir.Module, dict[Value, Value]]:
    """A module of these steps' ops that returns the values, and what all are there."""
    code = mlir.parse("func.func @main() { stablehlo.return }")
    block: Any = mlir.body(mlir.main_function(code))
    end, copies = mlir.return_operation(block), dict[Value, Value]()
    made = {result for step in steps for result in step.op.results}

    def copied(value: Value) -> Value:
        op = mlir.defining_operation(value)
        if value not in copies and op and (value in made or is_splat(value, 0)):
            for operand in op.operands:
                copied(operand)
            copy_all([op], copies, end, Scope())
        elif value not in copies:
            copies[value] = block.add_argument(value.type, end.location)
        return copies[value]

    extend_return(end, [copied(value) for value in values])
    mlir.run_passes(code, "strip-debuginfo")
    return code, copies
