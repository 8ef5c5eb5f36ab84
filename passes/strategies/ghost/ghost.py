"""Ghost: norms and inner products from pairs of positions, of gradients that are outer products."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import Gram, Norms, TokenNorms
from hlo_surgery.passes.measures.real_examples import Padding, without_padding
from hlo_surgery.passes.strategies.ghost.ghost_factors import is_narrow
from hlo_surgery.passes.strategies.ghost.ghost_norms import ghost_gram, ghost_norms, token_norms
from hlo_surgery.passes.strategies.ghost.ghost_paths import is_lighter, may_cancel, path_counts
from hlo_surgery.passes.strategies.strategy import Asked, Computed, Measured, Strategy, one_by_one
from hlo_surgery.passes.strategies.task import Known, Schedule, Task

# Inner products and indices are float32 and int32.
WORD = 4


def _applies(task: Task, measure: Measure) -> bool:
    """Whether each example's gradient is a sum of outer products; for all pairs, of a single one.

    Single positions have norms of their own if each is one term of a single sum.
    """
    match measure:
        case Norms():
            return bool(task.paths) and measure == Norms()
        case TokenNorms():
            return len(task.paths) == 1
        case Gram():
            return len(task.paths) == 1 and _is_one_product(task)
        case _:
            return False


def _is_one_product(task: Task) -> bool:
    path = task.paths[0]
    dense = path.site.op.name == "stablehlo.dot_general"
    return dense and path_counts(path, task.examples.size)[0] == 1


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """Inner products of all pairs of an example's positions, every product exact. The largest
    elements of several are read before, and scaled operands written where XLA does not scale them
    on their way. Where devices have parts of a contraction's gradient, each gathers all elements
    of the operands for the products, and does all the work.
    """
    counts, device = task.counts, task.device
    each = [path_counts(path, counts.size) for path in task.paths]
    pairs = counts.size * sum(positions for positions, _ in each) ** 2
    flops = 2 * pairs * max(elements for _, elements in each)
    moved = counts.read + 2 * pairs * WORD
    narrow = device.narrow_operands and all(map(is_narrow, task.paths))
    seconds = max(flops / device.exact_rate(narrow), moved / device.bandwidth)
    if may_cancel(task.paths, counts.size):
        seconds += device.moving_seconds((1 + device.scaling) * counts.read, counts.read)
    contracted = all(path.site.op.name == "stablehlo.dot_general" for path in task.paths)
    return Predicted(seconds * (schedule.parts if contracted else 1), 2 * pairs * WORD)


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether pairs of positions are fewer than an example's gradient has elements, and are told to
    be no slower.
    """
    if isinstance(measure, Gram | TokenNorms) or not may_cancel(task.paths, task.examples.size):
        return True
    is_faster = _predict(task, [measure], schedule).seconds <= otherwise.seconds
    return is_faster and is_lighter(task.paths, task.sliced.value, task.examples.size)


def _emit(asked: Asked, known: Known) -> Computed:
    task, padding = asked.task, asked.task.examples.padding(known)
    over = (known, task.examples.size, task.examples.factor(known))
    measured: Measured = {}
    for measure in asked.measures:
        match measure:
            case Gram():
                rows = without_padding(ghost_gram(task.function, task.paths[0], *over), padding)
                # Of inner products the columns are examples too.
                measured[measure] = without_padding(rows.T, padding).T
            case TokenNorms():
                norms = token_norms(task.function, task.paths[0], *over)
                measured[measure] = without_padding(norms, padding)
            case _:
                norms = _norms(asked, known, measure, padding)
                measured[measure] = without_padding(norms, padding)
    return Computed(measured)


def _norms(asked: Asked, known: Known, measure: Measure, padding: Padding | None) -> jax.Array:
    """Norms from pairs, or from each example's own gradient where those have cancelled."""
    task, examples = asked.task, asked.task.examples
    factor = examples.factor(known)
    norms, reliable = ghost_norms(
        task.function, task.paths, known, examples.size, factor, task.device
    )
    if not may_cancel(task.paths, examples.size):
        return norms
    counted = reliable if padding is None else reliable | ~padding.real
    return lax.cond(jnp.all(counted), lambda: norms, partial(_instantiated, asked, known, measure))


def _instantiated(asked: Asked, known: Known, measure: Measure) -> jax.Array:
    (made,) = asked.chosen.instantiating.emit([Asked(asked.chosen, [measure])], known)
    return made.measured[measure]


GHOST = Strategy(
    "ghost",
    _applies,
    _predict,
    one_by_one(_emit),
    _pays,
    words="norms from inner products of what the contraction sums, no gradient being made",
)
