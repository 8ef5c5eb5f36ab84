"""Bugs that accept what is unsound: each a text of a file of passes/, and what replaces it."""

from soundness_bugs.bug import Bug
from soundness_bugs.elsewhere import ELSEWHERE
from soundness_bugs.owners_alignment import ALIGNMENT
from soundness_bugs.owners_constants import CONSTANTS
from soundness_bugs.owners_contributions import CONTRIBUTIONS
from soundness_bugs.owners_control_flow import CONTROL_FLOW
from soundness_bugs.owners_labelling import LABELLING
from soundness_bugs.owners_ops import OPS

__all__ = ["BUGS", "TESTS", "Bug"]

# The folder's own tests come first, and of them what refuses, which is quick and kills most.
TESTS = (
    "tests/owners/test_verdicts.py",
    "tests/owners/test_labels.py",
    "tests/owners/test_owner_moves.py",
    "tests/owners/test_integers.py",
    "tests/owners/test_contributed.py",
    "tests/owners/test_accepted.py",
    "tests/owners/test_owner_claims.py",
    "tests/owners/test_owner_claims_in_loops.py",
    "tests/owners/test_random_moves.py",
    "tests/owners/test_emission.py",
    "tests/test_near_misses.py",
    "tests/test_until_done.py",
    "tests/test_counters.py",
    "tests/test_constants.py",
    "tests/test_batch_gradients.py",
    "tests/test_control_flow_refusals.py",
    "tests/test_refusals.py",
    "tests/test_batch_constants.py",
    "tests/test_products_of_sums.py",
    "tests/test_group_masks.py",
    "tests/test_split_batches.py",
    "tests/test_views.py",
    "tests/test_parts.py",
    "tests/test_contributions.py",
    "tests/test_devices.py",
    "tests/test_row_wise.py",
    "tests/test_control_flow.py",
)

BUGS = [*OPS, *CONSTANTS, *CONTROL_FLOW, *LABELLING, *ALIGNMENT, *CONTRIBUTIONS, *ELSEWHERE]
