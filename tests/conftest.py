"""How many random programs are drawn: `default` (also in CI) a fixed few, `long` thousands.

Also which are the smoke part (`pytest -m smoke`), and which are slow, left out unless asked for
(`pytest -m slow`; all with `pytest -m ""`), as those of `first(n)` behind the first cases. Choose
the number of programs with `pytest --hypothesis-profile long` or HYPOTHESIS_PROFILE=long.

Programs are compiled fast (`fast_compiles.py`) unless XLA_FLAGS says otherwise: `XLA_FLAGS= pytest`
compiles them as a user does. `-m default_flags` are the tests that have to run so.
"""

import collections
import gc
import os
import pathlib

from hypothesis import HealthCheck, Phase, settings

from tests.fast_compiles import FAST_COMPILES

TESTS = pathlib.Path(__file__).parent
# Before JAX is imported.
os.environ.setdefault("XLA_FLAGS", FAST_COMPILES)
# pytest's workers say how wide a terminal is that they do not have; tables would fold to it.
os.environ.pop("COLUMNS", None)

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# Shrinking compiles for every attempt, so the default profile reports the first failing program.
NO_SHRINKING = [Phase.explicit, Phase.generate]

settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=3,
    phases=NO_SHRINKING,
    suppress_health_check=SLOW_DRAWS,
    print_blob=True,
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, suppress_health_check=SLOW_DRAWS, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# What another version of JAX could break, in about a minute: the analysis, the emission, the API.
SMOKE = {
    "test_api",
    "test_claims",
    "test_fixtures",
    "test_ghost_norms",
    "test_refusals",
    "test_algorithms",
}

# What another way to compile could break: the ends of the range of floats, and narrow integers.
DEFAULT_FLAGS = {"test_norm_ranges", "test_segments", "test_square_ranges"}
# What takes longest: the tools' programs, optimizers over many steps, every layout over several
# devices, forms of what another file holds once, traps, and `DEFAULT_FLAGS`, which have their run.
SLOW = DEFAULT_FLAGS | {
    "test_bench",
    "test_closed_over",
    "test_coincident_sizes",
    "test_curvature",
    "test_decoder_devices",
    "test_equinox_models",
    "test_fold_squared_sums",
    "test_fused",
    "test_loop_examples",
    "test_meshes",
    "test_microbatches",
    "test_mosaic_kernels",
    "test_nested_microbatches",
    "test_padding",
    "test_paired_runs",
    "test_projections",
    "test_scripts",
    "test_train_step_optimizers",
    "test_traps",
    "test_verification_statistics",
}
MARKED = {"smoke": SMOKE, "default_flags": DEFAULT_FLAGS, "slow": SLOW}


def pytest_ignore_collect(collection_path, config):
    """Of the smoke part other files are not read, which takes longer than its tests."""
    is_left_out = collection_path.name.startswith("test_") and collection_path.stem not in SMOKE
    return True if is_left_out and config.option.markexpr == "smoke" else None


def pytest_collection_modifyitems(items):
    cases = collections.Counter()
    for item in items:
        for mark, files in MARKED.items():
            if pathlib.Path(item.fspath).stem in files:
                item.add_marker(mark)
        test = item.nodeid.split("[")[0]
        cases[test] += 1
        first = item.get_closest_marker("first")
        if first and cases[test] > first.args[0]:
            item.add_marker("slow")


def pytest_collection_finish():
    """What was imported stays, and tracing makes many small objects: to look through them for
    garbage as often as Python does by default takes a thirtieth of the time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 5)
