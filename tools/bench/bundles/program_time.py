"""A second count of a TPU program's time: the bundles its fusions run, from libtpu's dumps.

Independent of `estimated_cycles`: each fusion takes its bundles, or as long as main memory takes to
deliver what its copies move, or as the matrix units take at their peak (bundles alone would beat
that by up to 16 %), whichever is longest; loops and copies between fusions are timed as the
estimate times them. Nothing runs. `dump_bundles` must be called before libtpu is loaded; what has
been dumped before a compilation is dropped.
"""

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from hlo_surgery.requests.options import roofline
from hlo_surgery.targets.costs import CLOCKS
from hlo_surgery.targets.executed import flops, moved_bytes
from hlo_surgery.targets.program import Instruction, Program, parse
from hlo_surgery.targets.target import Target
from hlo_surgery.targets.times import FREE_CALLS, estimated_cycles
from hlo_surgery.targets.trip_counts import Executed, executed, summed
from tools.bench.bundles.count import Count, count_of
from tools.bench.bundles.equal_fusions import form_of
from tools.bench.bundles.text import read_bundles

FLAGS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=final_bundles"
)
NAME = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")


@dataclass(frozen=True)
class BundleTime:
    """A run's cycles and seconds, bytes that fusions move, and runs without a count, by opcode.

    The latter, such as scatters, takes as long as main memory takes for its operands and results.
    """

    cycles: float
    seconds: float
    bytes: int
    without_bundles: dict[str, int | None]


def dump_bundles() -> Path:
    """Make libtpu dump the final bundles of what it compiles, and where to."""
    folder = Path(tempfile.mkdtemp(prefix="bundles"))
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(
        [os.environ.get("LIBTPU_INIT_ARGS", ""), FLAGS.format(folder)]
    ).strip()
    return folder


def compiled_with_bundles(
    compile_: Callable[[], jax.stages.Compiled], folder: Path, target: Target
) -> tuple[jax.stages.Compiled, BundleTime]:
    """Compile, and count the bundles of what was compiled."""
    for file in folder.iterdir():
        file.unlink()
    executable = compile_()
    return executable, bundle_time(parse(executable.as_text() or ""), counts_in(folder), target)


def counts_in(folder: Path) -> dict[str, Count]:
    """What each dumped program runs, by the instruction's name."""
    found = {file: NAME.fullmatch(file.name) for file in sorted(folder.iterdir())}
    texts = {match[1]: file.read_text() for file, match in found.items() if match}
    counts = {name: _counted(text) for name, text in texts.items() if _is_fusion(name)}
    return {name: count for name, count in counts.items() if count}


def _counted(text: str) -> Count | None:
    """None where data decides how long it takes, as in a scatter."""
    try:
        return count_of(read_bundles(text))
    except ValueError:
        return None


def _is_fusion(name: str) -> bool:
    return not name.startswith(("TLP", "<late")) and not name.endswith("schedule-analysis")


def bundle_time(program: Program, counts: dict[str, Count], target: Target) -> BundleTime:
    """The time of a scheduled program by the bundles of its instructions."""
    device = roofline(target.kind)
    clock = CLOCKS[target.kind] * target.devices_per_chip
    rate, peak = device.bandwidth / clock, device.flops / clock
    runs = list(executed(program))
    counts = _with_equals(runs, counts)

    def cycles_of(instruction: Instruction) -> float:
        count = counts.get(instruction.name)
        if count is None:
            return moved_bytes(instruction) / rate if _computes(instruction) else 0
        return max(count.bundles, count.bytes / rate, _contracted(instruction) / peak)

    moved = sum(
        (each.times or 0) * count.bytes
        for each in runs
        if (count := counts.get(each.instruction.name))
    )
    missing = [
        each for each in runs if _computes(each.instruction) and each.instruction.name not in counts
    ]
    without = summed((each.instruction.opcode, each.times) for each in missing)
    cycles = estimated_cycles(program, rate, cycles_of)
    return BundleTime(cycles, cycles / CLOCKS[target.kind], moved, without)


def _contracted(instruction: Instruction) -> int:
    """The FLOPs of the contractions in an instruction."""
    if instruction.opcode == "fusion":
        return sum(map(_contracted, instruction.inside().instructions))
    return flops(instruction) if instruction.opcode in ("convolution", "dot") else 0


def _with_equals(runs: Sequence[Executed], counts: dict[str, Count]) -> dict[str, Count]:
    """The counts of what is compiled under another's name as well."""
    computing = {each.instruction.name: each for each in runs if _computes(each.instruction)}
    forms = {name: form_of(each.instruction) for name, each in computing.items()}
    by_form = {forms[name]: count for name, count in counts.items() if name in forms}
    return {name: by_form[form] for name, form in forms.items() if form in by_form} | counts


def _computes(instruction: Instruction) -> bool:
    made = instruction.opcode in ("fusion", "custom-call", "sort", "scatter", "gather")
    free = any(f'custom_call_target="{name}"' in instruction.text for name in FREE_CALLS)
    return (bool(instruction.estimated_cycles) or made) and not free
