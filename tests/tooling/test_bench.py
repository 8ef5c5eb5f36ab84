"""The bench: whatever a user would write for a statistic agrees with ours.

This folder alone tests the programs in `tools/`, and what `docs/howto.md` promises.
"""

import pytest

from tools.bench import twelve
from tools.models.families import mlp


@pytest.mark.parametrize("statistic", twelve.STATISTICS)
def test_a_user_has_all_ways_of_twelve(statistic, monkeypatch, tmp_path):
    """`measure` compares what they return."""
    pytest.importorskip("jax_privacy")
    monkeypatch.setitem(twelve.TWELVE, "tiny", lambda: mlp.classifier(16, (4, 6, 3)))
    rows = twelve.measure("tiny", statistic, rounds=1)
    expected = {"plain", "plan", "in microbatches", *twelve.RIVALS, "our lift", "our loop"}
    expected |= {"our square" if statistic == "squares" else "our ghost", "micro_grad, whole"}
    if statistic != "clipped":
        expected.remove("jax-privacy")
    assert {row.way.split(":")[0] for row in rows} == expected
    assert all(row.cpu > 0 and row.first_call > 0 for row in rows)
    twelve.write([rows], tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(rows)
