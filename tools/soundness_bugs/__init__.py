"""Bugs that accept what is unsound: each a text of a file of passes/, and what replaces it."""

from collections.abc import Sequence

from tools.soundness_bugs.bug import Bug
from tools.soundness_bugs.elsewhere import ELSEWHERE
from tools.soundness_bugs.fillings import FILLINGS
from tools.soundness_bugs.kernels import KERNELS
from tools.soundness_bugs.microbatches import MICROBATCHES
from tools.soundness_bugs.not_shown import NOT_SHOWN
from tools.soundness_bugs.owners.alignment import ALIGNMENT
from tools.soundness_bugs.owners.bounds import BOUNDS
from tools.soundness_bugs.owners.conditions import CONDITIONS
from tools.soundness_bugs.owners.constants import CONSTANTS, HELD
from tools.soundness_bugs.owners.contributions import CONTRIBUTIONS
from tools.soundness_bugs.owners.control_flow import CONTROL_FLOW
from tools.soundness_bugs.owners.following import FOLLOWING
from tools.soundness_bugs.owners.given_rows import GIVEN_ROWS
from tools.soundness_bugs.owners.grouped_sums import GROUPED_SUMS
from tools.soundness_bugs.owners.indices import INDICES
from tools.soundness_bugs.owners.labelling import LABELLING
from tools.soundness_bugs.owners.ops import OPS
from tools.soundness_bugs.owners.shares import SHARES
from tools.soundness_bugs.owners.stand_ins import STAND_INS
from tools.soundness_bugs.terms import TERMS

__all__ = ["BUGS", "TESTS", "Bug", "tests_of"]

# The folder's own tests come first, and of them what refuses, which is quick and kills most.
TESTS = (
    "tests/owners/test_verdicts.py",
    "tests/owners/labelling/test_labels.py",
    "tests/owners/labelling/test_owner_moves.py",
    "tests/owners/labelling/test_integers.py",
    "tests/owners/labelling/test_bounds.py",
    "tests/owners/labelling/test_flat_rows.py",
    "tests/owners/labelling/test_fillings.py",
    "tests/owners/test_contributed.py",
    "tests/owners/test_accepted.py",
    "tests/owners/claims/test_unseen_rows.py",
    "tests/owners/alignment/test_rows_of_nobody.py",
    "tests/owners/alignment/test_rows_of_weights.py",
    "tests/owners/shares/test_row_sums.py",
    "tests/owners/claims/test_padded_rows.py",
    "tests/owners/claims/test_hidden_parameters.py",
    "tests/owners/claims/test_placements.py",
    "tests/owners/claims/test_owner_claims.py",
    "tests/owners/claims/test_owner_claims_in_loops.py",
    "tests/owners/labelling/test_random_moves.py",
    "tests/owners/test_emission.py",
    "tests/acceptance/test_near_misses.py",
    "tests/microbatches/test_some_rows.py",
    "tests/owners/claims/test_same_constants.py",
    "tests/microbatches/test_even_shares.py",
    "tests/microbatches/test_group_shares.py",
    "tests/microbatches/test_row_constants.py",
    "tests/microbatches/test_step_constants.py",
    "tests/terms/test_kept_examples.py",
    "tests/microbatches/test_parts_of_any_size.py",
    "tests/microbatches/test_vmapped_microbatches.py",
    "tests/acceptance/test_until_done.py",
    "tests/owners/test_until_done_flags.py",
    "tests/owners/test_same_values.py",
    "tests/owners/test_held_constants.py",
    "tests/following/test_row_refusals.py",
    "tests/following/test_row_models.py",
    "tests/following/test_packed_attention.py",
    "tests/following/test_graph_networks.py",
    "tests/loops/test_counters.py",
    "tests/normalise/test_constants.py",
    "tests/loops/test_parts_of_stacks.py",
    "tests/strategies/test_golden_strategies.py",
    "tests/strategies/test_ghost_norms.py",
    "tests/statistics/test_kronecker.py",
    "tests/statistics/test_kronecker_refusals.py",
    "tests/loops/test_loop_dtypes.py",
    "tests/acceptance/test_batch_gradients.py",
    "tests/acceptance/test_control_flow_refusals.py",
    "tests/acceptance/test_refusals.py",
    "tests/acceptance/test_batch_constants.py",
    "tests/acceptance/test_products_of_sums.py",
    "tests/acceptance/test_group_masks.py",
    "tests/microbatches/test_uneven_rows.py",
    "tests/owners/claims/test_stand_ins.py",
    "tests/owners/claims/test_given_rows.py",
    "tests/owners/claims/test_sums_beside_constants.py",
    "tests/owners/claims/test_taken_rows.py",
    "tests/owners/claims/test_rest_steps.py",
    "tests/loops/test_split_batches.py",
    "tests/loops/test_views.py",
    "tests/loops/test_parts.py",
    "tests/microbatches/test_steps_of_two_examples.py",
    "tests/microbatches/test_second_pass.py",
    "tests/microbatches/test_nested_microbatches.py",
    "tests/microbatches/test_microbatches.py",
    "tests/acceptance/test_contributions.py",
    "tests/normalise/test_devices.py",
    "tests/equivalence/test_row_wise.py",
    "tests/dataflow/test_mosaic_kernels.py",
    "tests/dataflow/test_fused_attention.py",
    "tests/dataflow/test_declared_calls.py",
    "tests/dataflow/test_matrix_calls.py",
    "tests/normalise/test_prefix_sums.py",
    "tests/normalise/test_unchanged_carries.py",
    "tests/normalise/test_kernels_on_devices.py",
    "tests/loops/test_control_flow.py",
    "tests/loops/test_private_padding.py",
    "tests/loops/test_pipelines.py",
)

OWNERS = [
    *OPS,
    *CONSTANTS,
    *CONDITIONS,
    *CONTROL_FLOW,
    *LABELLING,
    *BOUNDS,
    *INDICES,
    *ALIGNMENT,
    *NOT_SHOWN,
    *GIVEN_ROWS,
    *GROUPED_SUMS,
    *SHARES,
    *STAND_INS,
    *CONTRIBUTIONS,
    *FOLLOWING,
    *FILLINGS,
]
BUGS = [*OWNERS, *HELD, *MICROBATCHES, *KERNELS, *TERMS, *ELSEWHERE]


def tests_of(bug: Bug) -> Sequence[str]:
    """The files of tests that may kill a bug, those first that do most often."""
    return TESTS if bug.file.startswith("owners/") else TESTS[::-1]
