"""Places that many elements come from: those of one example alone are its, others are none's."""

import numpy as np

from hlo_surgery.passes.owners.alignment.placements import told_apart
from hlo_surgery.passes.owners.labelling.labels import MOST_LABELS

FIRST, SECOND = 0, 1


def test_what_lies_at_several_examples_is_no_examples():
    rows = np.array([[FIRST, FIRST], [FIRST, SECOND], [SECOND, FIRST], [FIRST, SECOND]], np.int32)
    alone, both, swapped, again = told_apart(rows, [1])[:, 0]
    assert alone == FIRST
    assert both >= MOST_LABELS
    assert swapped >= MOST_LABELS
    assert both == again != swapped
