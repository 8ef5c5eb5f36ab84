"""The experiments: a run is its seed's, whatever runs beside it."""

from tools.experiments.paired.records import read_csv
from tools.experiments.paired.variants import BATCH_SIZE
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training.model import Size

TINY = Size("small", V=256, L=16, N=1, H=1, c=0.02)


def test_a_rerun_of_a_seed_is_its_line_bit_for_bit(tmp_path):
    """In another process, beside another run, begun in another order."""
    wanted = [Wanted(name, 0.01, 0, BATCH_SIZE, TINY) for name in ("sign_ema", "adam")]
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    Runs(one, 1).made(wanted)
    Runs(other, 2).made(wanted[::-1])
    assert one.read_bytes() == other.read_bytes()
    assert len(read_csv(one)) == 2
