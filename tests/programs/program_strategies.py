"""Hypothesis strategies of random programs: `programs` separable, `mixing_programs` with meetings.

A program is read off a few random bytes, each choice at its own place: hypothesis then draws every
choice evenly, and shrinks a failing program by turning bytes to zero, which is the first and
simplest option of every choice.
"""

from dataclasses import replace

from hypothesis import strategies as st

from tests.programs.layer_table import LAYERS
from tests.programs.random_mixing import MIXING_GRADIENTS, MIXING_LAYERS, MIXING_LOSSES
from tests.programs.random_programs import LABELLED, Program, Step
from tests.programs.random_weights import WEIGHTS

INPUT_AXES = ["NC", "CN", "NLC", "LNC", "LCN", "NHWC", "HWNC", "NCHW", "HWCN"]
ID_AXES = ["NL", "LN"]
LOOKUPS = ["take", "one_hot", "take_along_axis"]
LOSSES = ["square", "log_cosh", *LABELLED]
DTYPES = ["float32"] * 6 + ["float64", "bfloat16"]
LONGEST = 5
NOISE = st.binary(min_size=80, max_size=80)
# How to compute, which must not matter.
REUSE = st.sampled_from([None, False])
plannings = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["auto", "lift", "loop"]),
        "shards": st.sampled_from([None, 2, 3]),
        "reuse_gradient": REUSE,
    }
) | st.fixed_dictionaries({"strategy": st.just("fused"), "reuse_gradient": REUSE})


def chooser(noise):
    """A function that chooses one of some options by the next byte."""
    stream = iter(noise)
    return lambda options: list(options)[next(stream) % len(options)]


def draw_steps(choose, kind, smooth, longest):
    """Up to `longest` steps that accept one another's axes, and the kind of axes they end with."""
    steps = []
    for _ in range(longest):
        names = [
            n
            for n, layer in LAYERS.items()
            if kind in layer.accepts and not (smooth and layer.kinked)
        ]
        present, name = choose([False, True, True]), choose(names)
        step = Step(name, choose([1, 2, 3, 4]), choose(WEIGHTS))
        if present:
            steps.append(step)
            kind = LAYERS[name].gives or kind
    return tuple(steps), kind


def separable_program(noise, min_batch=1, longest=LONGEST):
    """The program that the bytes stand for."""
    choose = chooser(noise)
    dtype, lookup = choose(DTYPES), choose(["", "", *LOOKUPS])
    axes = choose(ID_AXES if lookup else INPUT_AXES)
    smooth = dtype == "bfloat16"
    batch, length, width = (
        choose(range(low, high)) for low, high in [(min_batch, 7), (1, 5), (1, 7)]
    )
    standardised = choose([False, False, False, True]) and not lookup and not smooth
    loss, label_axis, weight_axis = choose(LOSSES), choose([0, 1]), choose([0, 1])
    reduction, decay = choose(["mean", "sum"]), choose([False, True])
    head = Step(
        choose(["dense", "tied"]) if lookup else "dense", choose(range(2, 7)), choose(WEIGHTS)
    )
    kind = "".join(a for a in "LHW" if a in axes) + "C"
    steps, kind = draw_steps(choose, kind, smooth, longest)
    weighting = choose(["none", "rows", "normalised"] + ["tokens"] * (kind != "C"))
    return Program(
        axes=axes,
        lookup=lookup,
        batch=batch,
        length=length,
        width=width,
        dtype=dtype,
        standardised=standardised,
        steps=steps,
        head=head,
        loss=loss,
        label_axis=label_axis if kind != "C" or not loss.startswith("cross_entropy") else 0,
        weighting=weighting,
        weight_axis=weight_axis if weighting == "tokens" else 0,
        reduction=reduction,
        decay=decay,
    )


def coincident_program(noise):
    """Most sizes are the batch's, or one more or less: what goes by sizes alone errs here."""
    choose = chooser(noise[:16])
    batch = choose([2, 3, 4, 5])
    sizes = [batch, batch, batch, batch + 1, batch - 1, 2 * batch]
    program = separable_program(noise[16:], min_batch=2, longest=3)
    steps = tuple(replace(step, knob=choose(sizes[:5])) for step in program.steps)
    head = replace(program.head, knob=max(2, choose(sizes)))
    length, width = choose([*sizes[:5], max(batch - 2, 1)]), choose(sizes)
    return replace(program, batch=batch, length=length, width=width, steps=steps, head=head)


def mixing_program(noise):
    """Mixing planted behind a layer that has parameters: mixing of the data alone is allowed."""
    choose = chooser(noise[:8])
    program = replace(separable_program(noise[8:], min_batch=2), standardised=False)
    table = choose([MIXING_LAYERS, MIXING_LAYERS, MIXING_LOSSES, MIXING_GRADIENTS])
    name, first, place = (
        choose(table),
        Step("dense_bias", choose([1, 2, 3, 4])),
        choose(range(1, 256)),
    )
    if table is not MIXING_LAYERS:
        return replace(program, mixing=name)
    steps = [first, *program.steps]
    at = 1 + place % len(steps)
    return replace(program, steps=(*steps[:at], Step(name), *steps[at:]), mixing=name)


programs = NOISE.map(separable_program)
coincident_programs = NOISE.map(coincident_program)
mixing_programs = NOISE.map(mixing_program)
