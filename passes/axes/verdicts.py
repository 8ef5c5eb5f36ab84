"""Verdicts: whether an output is a sum of the examples' own, and if not, why.

The constant part: whether a sum over the examples, r + sum of c_b, has an r other than zero.

%g = dot_general %x, %l              =>  none
%h = add %g, %decay                  =>  %decay

It is followed back through the linear ops to the sites, and to whatever loops and branches carry.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.axes.meeting import PLACING
from hlo_surgery.passes.axes.state import Batched, Class, Mixed, Shared, State, is_sum
from hlo_surgery.passes.dataflow.ancestors import MADE_FROM, PASSING, ancestors, ties
from hlo_surgery.passes.dataflow.vanishing import UPDATES, vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_table
from hlo_surgery.passes.ir.errors import GIVEN_HELP, MIXING_HELP, Reason, reason_at, source_line
from hlo_surgery.passes.ir.mlir import Block, Operation, Shape, Value, Values, closure, loops_around
from hlo_surgery.passes.ir.traits import initial_operands, is_linear


def holds_constant(state: State, gradient: Value, terms: Values) -> bool:
    """Whether a gradient is, or has, a constant that is not zero, given its constant `terms`."""
    known = state.of(gradient)
    return (is_sum(known) or isinstance(known, Shared)) and bool(terms)


def constant_terms(state: State, value: Value) -> Values:
    """What is added to the examples' own terms in a sum, as far as the ops show, but zeros; of what
    is no sum, itself.
    """
    if not is_sum(state.of(value)):
        return [] if vanishes(value) else [value]
    terms = closure([value], partial(_next_terms, state))
    return [v for v in terms if isinstance(state.of(v), Shared) and not vanishes(v)]


def _next_terms(state: State, value: Value) -> Values:
    """What is added up in a sum by the op that makes it, or by all steps of the loop."""
    if not is_sum(state.of(value)):
        return []
    op = mlir.defining_operation(value)
    if op is None or op.name in PASSING:
        return ties(value)
    summed = frozenset(i for i, c in enumerate(state.at(op)) if is_sum(c))
    operands = mlir.operands(op)
    if not summed:
        return [operands[i] for i in initial_operands(op)]
    return [v for i, v in enumerate(operands) if i in summed or is_linear(op, summed | {i})]


def has_rows_of_a_parameter(state: State, block: Block, gradient: Value, terms: Values) -> bool:
    """Whether a gradient with a constant part may be of a parameter of which each example meets a
    row of its own: its constant rows would be single examples'. By shape, since nothing else tells
    which gradient is of which parameter. `terms`: its constant ones.
    """
    if not holds_constant(state, gradient, terms):
        return False
    whole = [a for a in block.arguments if a in state.trained and state.digits(a)]
    behind = _behind_taken(state, block, _taken_by_row, whole)
    return mlir.shape(gradient) in {mlir.shape(v) for v in behind if v in state.trained}


def is_met_singly(state: State, block: Block, gradient: Value) -> bool:
    """Whether a gradient that no example reaches may be of a parameter that meets them one by one,
    each to weigh as a loop or the program says: how much of it is whose is not shown.
    """
    if not isinstance(state.of(gradient), Shared) or vanishes(gradient):
        return False
    met, shape = _behind_taken(state, block, _met_singly), mlir.shape(gradient)
    own = [a for a in block.arguments if a in state.trained and mlir.shape(a) == shape]
    outputs = mlir.returned(block)
    alike = [v for v in outputs if isinstance(state.of(v), Shared) and mlir.shape(v) == shape]
    # Parameters that meet none, as those of a penalty alone, may have such gradients.
    return not met.isdisjoint(own) and len(alike) > len(set(own) - met)


def _differs(state: State, value: Value) -> bool:
    """Whether a constant within steps that take examples rests on what changes with the steps: it
    is each step's own then, and not everybody's.
    """
    bodies = [op.regions[1].blocks[0] for op in loops_around(value) if _takes_examples(state, op)]
    made = closure([value], mlir.made_of) if bodies else set[Value]()
    return any(_changes(body, v) for body in bodies for v in made)


def _takes_examples(state: State, loop: Operation) -> bool:
    known = state.structure.loop_of(loop)
    return known is not None and bool(state.batch_digits(known.digits.values()))


def _changes(body: Block, value: Value) -> bool:
    """Whether a value is a carry that a step hands on as another, or counts the steps."""
    handed = zip(body.arguments, mlir.returned(body), strict=True)
    return any(argument == value and after != value for argument, after in handed)


def _behind_taken(
    state: State,
    block: Block,
    taken: Callable[[State, Operation], Values],
    more: Values = (),
) -> set[Value]:
    """The arguments behind what ops take in some way."""
    starts = [
        v for op in mlir.operations_within(block) if len(op.results) for v in taken(state, op)
    ]
    return ancestors([*starts, *more]).intersection(block.arguments)


def _taken_by_row(state: State, op: Operation) -> Values:
    """The parameters, or what is made of them, that an op lays along the batch, place by place."""
    own = state.digits(*op.results)
    shared = [v for v in op.operands if isinstance(state.of(v), Shared) and v in state.trained]
    if op.name == "stablehlo.concatenate" and any(_is_at(c) for c in state.at(op)):
        return shared
    if not own or op.name == "stablehlo.broadcast_in_dim" or op.name in mlir.CONTROL_FLOW:
        return []
    if op.name in UPDATES and isinstance(state.at(op)[0], Batched):
        # Written over the rows of some examples, or added to them.
        put = op.operands[UPDATES[op.name]]
        return [put] if put in shared and own - state.digits(put) else []
    before = state.digits(*op.operands)
    return shared if own - before else []


def _is_at(known: Class) -> bool:
    return isinstance(known, Batched) and bool(known.at)


def _met_singly(state: State, op: Operation) -> Values:
    """The parameters, or what is made of them, that meet a step's example, or one at a place."""
    pairs = list(zip(op.operands, state.at(op), strict=True))
    if op.name in mlir.CONTROL_FLOW or not any(_is_single(state, v, c) for v, c in pairs):
        return []
    return [v for v, c in pairs if isinstance(c, Shared) and v in state.trained]


def _is_single(state: State, value: Value, known: Class) -> bool:
    """Whether a value is a step's, or at a place. What is beside a sum of a step is everybody's."""
    if not isinstance(known, Batched):
        return False
    in_step = not known.summed and not state.digits(value).issuperset(state.batch)
    return _is_at(known) or in_step


def _may_be_rows(state: State, block: Block, own: set[Shape], size: int, value: Value) -> bool:
    """Whether a value is given, drawn, counted or a table, with rows for so many examples, or made
    by a loop of so many steps.
    """
    shape, op = mlir.shape(value), mlir.defining_operation(value)
    if not isinstance(state.of(value), Shared):
        return False
    if op is not None and op.name == "stablehlo.while":
        loop = state.structure.loop_of(op)
        return loop is None or loop.trips % size == 0
    if op is not None and op.name in PLACING:
        # So many rows among others, as of a parameter of which the examples meet some.
        parts = [(n, m) for v in op.operands for n, m in zip(mlir.shape(v), shape, strict=False)]
        return any(n > 1 and n % size == 0 and n != m for n, m in parts)
    has_rows = any(n > 1 and n % size == 0 for n in shape)
    if op is None:
        return has_rows and value in set(block.arguments) and shape not in own
    return has_rows and (op.name in MADE_FROM or is_table(op))


RETURNS = ("func.return", "stablehlo.return")
TWO_ORDERS = "parts of the batch lie in two orders"


BY_ROW = (
    "no example reaches this part of a gradient, and its parameter may have a row for each: "
    "whether row b is example b's is not shown"
)
BY_ROW_HELP = "pass a parameter with a row for each example as a batch argument"


SINGLY = (
    "no example reaches this gradient, or a part of it, and its parameter meets examples one by "
    "one: whose part is how much is not shown"
)
SINGLY_HELP = "take all examples at once, by jax.vmap; or ask for other gradients"


UNSEEN = (
    "a part of this gradient rests on no example, and may have a term for each: the module lacks "
    "what none of its outputs needs, which would show it"
)
UNSEEN_HELP = (
    "let the module show all of the loss: return it with the gradients, as jax.value_and_grad "
    "does; and pass what has a row for each example (a dropout mask, a weight) as a batch argument"
)


def unseen_reason(
    state: State, block: Block, gradients: Collection[int], size: int, terms: Values
) -> Reason | None:
    """Why constant `terms` of an output may have one for each example; None where they have not.

    `jax.jit` leaves out of a dump what no output needs: of `mean(mask * (x @ w + b))` the gradient
    of b needs the mask alone, and nothing shows that it met x. So behind the terms there may lie no
    numbers that are no parameter's, as many as a multiple of the examples, which nothing has
    aligned. To be asked of modules that may lack such; one that shows its loss does not.
    """
    outputs = mlir.returned(block)
    others = [v for i, v in enumerate(outputs) if i not in gradients and v in state.trained]
    if not terms or any(not mlir.shape(v) and is_sum(state.of(v)) for v in others):
        return None
    own = {mlir.shape(outputs[number]) for number in gradients}
    behind = ancestors(terms)
    rows = next((v for v in behind if _may_be_rows(state, block, own, size, v)), None)
    if rows is None:
        return None
    users = [op for op in mlir.users(rows) if op.name not in RETURNS]
    return reason_at(users[0], UNSEEN, UNSEEN_HELP) if users else _at(rows, UNSEEN, UNSEEN_HELP)


def undivided_reason(state: State, block: Block, output: Value, terms: Values) -> Reason | None:
    """Why examples have no share of their own in an output of a block; None where they have.
    `terms`: its constant ones.
    """
    if reason := _by_class(state, output):
        return reason
    if has_rows_of_a_parameter(state, block, output, terms):
        return _at(output, BY_ROW, BY_ROW_HELP)
    if any(_differs(state, v) for v in terms) or is_met_singly(state, block, output):
        return _at(output, SINGLY, SINGLY_HELP)
    return None


def _at(output: Value, why: str, help: str) -> Reason:
    op = mlir.defining_operation(output)
    where = "module" if op is None else source_line(op)
    return Reason(why, "func.return" if op is None else op.name, where, help)


def _by_class(state: State, output: Value) -> Reason | None:
    if len(set(state.batch)) < len(state.batch):
        return Reason(TWO_ORDERS, "func.func", "module")
    match state.of(output):
        case Mixed(reason):
            return reason
        case Batched(term=term, summed=summed, at=at):
            return as_term(term) if term and (summed or at) else None
        case Shared(term=term):
            return as_term(term) if term and not vanishes(output) else None


def as_term(reason: Reason) -> Reason:
    """Why a constant of the batch is refused as a term of a gradient."""
    if GIVEN_HELP not in reason.help:
        return reason
    help = reason.help.replace(MIXING_HELP, reasons.TERM_HELP)
    help = help.replace(GIVEN_HELP, reasons.TERM_HELP)
    return replace(reason, why=f"{reasons.TERM}: {reason.why}", help=help)
