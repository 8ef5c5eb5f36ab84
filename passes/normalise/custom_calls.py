"""Custom calls: given the names of some and their axes, the same calls, with these noted."""

from collections.abc import Mapping, Sequence

from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL, call_names, declare
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Value
from hlo_surgery.passes.ir.source_lines import source_line

# The examples' axis in each array, or one for all of them.
ArrayAxes = int | None | Sequence[int | None]
# By the name of a call: the axes of its operands, and of its results.
CallAxes = Mapping[str, tuple[ArrayAxes, ArrayAxes]]


def declare_calls(module: Module, declared: CallAxes) -> None:
    """Note what is declared of custom calls by their names, in place. Raises ValueError where there
    is no such call, or the axes do not fit it.
    """
    ops = mlir.all_operations(module)
    calls = [op for op in ops if op.name == CUSTOM_CALL]
    for name, (in_axes, out_axes) in declared.items():
        named = [op for op in calls if name in call_names(op)]
        if not named:
            there = dict.fromkeys(n for op in calls for n in call_names(op))
            raise ValueError(
                f"custom_calls names {name!r}, which the module does not call; it calls "
                f"{', '.join(there) or 'nothing of that kind'}"
            )
        for op in named:
            where = f"{name} at {source_line(op)}"
            ins = _for_each(in_axes, op.operands, f"operands of {where}")
            outs = _for_each(out_axes, op.results, f"results of {where}")
            declare(op, [(*ins, *outs)])


def _for_each(axes: ArrayAxes, values: Sequence[Value], what: str) -> list[int | None]:
    if axes is None or isinstance(axes, int):
        return [axes] * len(values)
    if len(axes) != len(values):
        raise ValueError(
            f"custom_calls has {len(axes)} axes for the {len(values)} {what}; pass one for each, "
            "None where there are no examples"
        )
    return list(axes)
