"""Per-example calls: what `hs.per_example_call` was put around, as one op for the analysis.

    composite "hlo_surgery.per_example_call" %x {example_axes = [[0, 0]], decomposition = @f}
        =>   custom_call @hlo_surgery.per_example_call(%x) {example_axes, body = "... @f ..."}

Its function is held as text in the call, which is then like any other that was declared; when all
is done, its ops stand in place of it.

Called functions: what custom calls name of their module, as `ApproxTopK` its comparator.

    custom_call @ApproxTopK(%x, ..) {called_computations = [@larger]}
        =>   custom_call @ApproxTopK(%x, ..) {hlo_surgery.called = ["func @main ..."]}

Inlining leaves nothing but main, and an op may be copied into a module of its own: a call carries
its functions as text until all is done.

Custom calls: given the names of some and their axes, the same calls, with these noted.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from hlo_surgery.passes.dataflow.kernels import (
    CUSTOM_CALL,
    DECLARED,
    axes_in,
    call_names,
    declare,
)
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import source_line
from hlo_surgery.passes.ir.mlir import Attributes, Module, Operation, Values, ir
from hlo_surgery.passes.ir.modules import (
    COMPOSITE,
    Functions,
    drop_placement,
    flatten,
    functions_of,
    move_body,
)
from hlo_surgery.passes.normalise.out_of_scope import refuse_effects, refuse_per_device

NAME = "hlo_surgery.per_example_call"
# What `hs.per_example_call` says of the composite: the axes, and the name of its function.
AXES, FUNCTION = "example_axes", "function"
BODY = "hlo_surgery.body"


def hold_functions(module: Module) -> None:
    """Have custom calls carry the functions that they name, put such a call in place of each
    composite that was declared, and drop what calls that the module brings along say of themselves.

    Raises ValueError where the axes do not fit, Refusal where a function does more than compute.
    """
    functions, ops = functions_of(module), mlir.all_operations(module)

    @cache
    def text_of(name: str) -> str:
        return mlir.to_text(flat_function(functions, name))

    # First those in the bodies of composites, which are to be held with all that they name.
    for op in ops:
        if op.name == CUSTOM_CALL:
            mlir.drop_attributes(op, [DECLARED, BODY, HELD])
            if CALLED in op.attributes:
                names = [str(name.value) for name in mlir.entries(op, CALLED)]
                texts = [ir.StringAttr.get(text_of(name), mlir.context()) for name in names]
                op.attributes[HELD] = ir.ArrayAttr.get(texts, mlir.context())
                del op.attributes[CALLED]
    for op in ops:
        if op.name == COMPOSITE and mlir.text_attribute(op, "name") == NAME:
            _hold(op, text_of(mlir.text_attribute(op, "decomposition")))


def flat_function(functions: Functions, name: str) -> Module:
    """A module of its own for a function other than main and all that it calls, flat."""
    with mlir.context(), ir.Location.unknown():
        made = ir.Module.create()
        for each, function in functions.items():
            if each == "main":
                continue
            copied = cast(Any, function.operation.clone())
            copied.attributes["sym_name"] = ir.StringAttr.get("main" if each == name else each)
            made.body.append(copied)
    drop_placement(made, mlir.all_operations(made))
    flatten(made)
    refuse_per_device(made)
    refuse_effects(made)
    return made


def _hold(op: Operation, body: str) -> None:
    said = cast(Any, op.attributes["composite_attributes"])
    texts = {"call_target_name": NAME, "kernel_name": said[FUNCTION].value, BODY: body}
    held: Attributes = {
        name: ir.StringAttr.get(text, mlir.context()) for name, text in texts.items()
    }
    made = mlir.rename(op, CUSTOM_CALL, held)
    count = len(made.operands) + len(made.results)
    # JAX puts arrays that the function closes over in front.
    declare(made, [(*[None] * (count - len(row)), *row) for row in axes_in(said[AXES])])


CALLED, HELD = "called_computations", "hlo_surgery.called"
MADE = "hlo_surgery_called"


def release_functions(module: Module) -> None:
    """Put what declared functions compute in place of the calls, and have those that others name
    beside main again, one for all calls that carry the same.
    """
    for op in mlir.all_operations(module):
        if op.name == CUSTOM_CALL and BODY in op.attributes:
            held = mlir.parse(mlir.text_attribute(op, BODY))
            mlir.replace(op, move_body(mlir.main_function(held), mlir.operands(op), op))
    made: dict[str, str] = {}
    for op in mlir.all_operations(module):
        if op.name == CUSTOM_CALL and HELD in op.attributes:
            texts = [str(text.value) for text in mlir.entries(op, HELD)]
            names = [made.setdefault(text, f"{MADE}_{len(made)}") for text in texts]
            with mlir.context():
                symbols = [ir.FlatSymbolRefAttr.get(name) for name in names]
                op.attributes[CALLED] = ir.ArrayAttr.get(symbols)
            del op.attributes[HELD]
    for text, name in made.items():
        held = mlir.parse(text)
        function = cast(Any, mlir.main_function(held).operation.clone())
        with mlir.context():
            function.attributes["sym_name"] = ir.StringAttr.get(name)
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        module.body.append(function)


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


def _for_each(axes: ArrayAxes, values: Values, what: str) -> list[int | None]:
    if axes is None or isinstance(axes, int):
        return [axes] * len(values)
    if len(axes) != len(values):
        raise ValueError(
            f"custom_calls has {len(axes)} axes for the {len(values)} {what}; pass one for each, "
            "None where there are no examples"
        )
    return list(axes)
