"""The optimizers of Roulet and Agarwala by the paper, in float64 NumPy, from examples' gradients.

Sections "Where should you place the sign in SignSGD?" and "A new family of Adam methods",
appendices "Experimental details" and "Detailed pseudocode". Each makes a function
`step(params, examples) -> params` with a state of its own: `params` is a list of arrays
(`Rounded`), `examples` a list with such a list for each example. Where the paper's pseudocode of
MicroAdamVar and MicroAdamMSQ contradicts its equation of the unbiased estimators, the equation is
right. Beyond the paper, `max_ratio` bounds the steps of these two.
"""

import math

import numpy as np

from tests.rounded import Rounded, rounded


def average(numbers):
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total / len(numbers)


def squared_mean(gradients):
    return average(gradients) * average(gradients)


def mean_square(gradients):
    return average([g * g for g in gradients])


def variance(gradients):
    return (mean_square(gradients) - squared_mean(gradients)) / (1 - 1 / len(gradients))


def squared_expectation(gradients):
    size = len(gradients)
    return (squared_mean(gradients) - mean_square(gradients) / size) / (1 - 1 / size)


def adam(learning_rate, **options):
    return adam_variant(squared_mean, learning_rate, **options)


def micro_adam(learning_rate, **options):
    return adam_variant(mean_square, learning_rate, **options)


def micro_adam_var(learning_rate, **options):
    return adam_variant(variance, learning_rate, **options)


def micro_adam_msq(learning_rate, eps=1e-6, **options):
    return adam_variant(squared_expectation, learning_rate, eps=eps, **options)


def adam_variant(
    nu,
    learning_rate,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    eps_root=0.0,
    weight_decay=0.0,
    clip_norm=None,
    seen=None,
    max_ratio=None,
):
    """`nu` of one parameter's gradients; `seen` lists corrected v before it is made positive."""
    m, v, powers, rates = {}, {}, (1.0, 1.0), rates_of(learning_rate)

    def step(params, examples):
        nonlocal powers
        beta1, beta2 = rounded(b1, params[0].unit), rounded(b2, params[0].unit)
        powers = (powers[0] * beta1, powers[1] * beta2)
        scale = 1.0 if clip_norm is None else clipping(examples, clip_norm)
        eta, stepped = next(rates), []
        for i, param in enumerate(params):
            gradients = [scale * example[i] for example in examples]
            m[i] = moving(m.get(i), average(gradients), beta1)
            v[i] = moving(v.get(i), nu(gradients), beta2)
            m_hat, v_hat = m[i] / (1 - powers[0]), v[i] / (1 - powers[1])
            if seen is not None:
                seen.append(v_hat.value)
            direction = m_hat / ((v_hat.at_least(0) + eps_root).sqrt() + eps)
            if max_ratio is not None:
                # What is divided twice is rounded twice.
                direction = 1.0 * direction.at_least(-max_ratio).at_most(max_ratio)
            stepped.append(param - eta * direction - weight_decay * param)
        return stepped

    return step


def sign_sgd(learning_rate, **options):
    """EMA after sign after average."""
    return sign_method(
        lambda gradients: average(gradients).sign(), lambda m: m, learning_rate, **options
    )


def sign_ema(learning_rate, **options):
    """Sign after EMA after average."""
    return sign_method(average, lambda m: m.sign(), learning_rate, **options)


def micro_sign_sgd(learning_rate, **options):
    """EMA after average after sign."""
    return sign_method(
        lambda gradients: average([g.sign() for g in gradients]),
        lambda m: m,
        learning_rate,
        **options,
    )


def sign_method(before, after, learning_rate, b1=0.9, weight_decay=0.0):
    m, rates = {}, rates_of(learning_rate)

    def step(params, examples):
        eta, stepped = next(rates), []
        for i, param in enumerate(params):
            m[i] = moving(
                m.get(i), before([example[i] for example in examples]), rounded(b1, param.unit)
            )
            stepped.append(param - eta * after(m[i]) - weight_decay * param)
        return stepped

    return step


def private_sgd(learning_rate, max_norm, momentum=0.0):
    """DP-SGD without its noise: the mean of the examples' gradients, each scaled to norm `max_norm`
    at most.

    With momentum, a step is along the sum of all such means before, each worth `momentum` of what
    it was a step ago.
    """
    sums, rates = {}, rates_of(learning_rate)

    def step(params, examples):
        eta, stepped = next(rates), []
        scales = [clipping([example], max_norm) for example in examples]
        for i, param in enumerate(params):
            clipped = average(
                [scale * example[i] for scale, example in zip(scales, examples, strict=True)]
            )
            sums[i] = momentum * sums[i] + clipped if i in sums else clipped
            stepped.append(param - eta * sums[i])
        return stepped

    return step


def private_adam(learning_rate, max_norm, **options):
    """Adam by the mean of the examples' gradients, each scaled to norm `max_norm` at most."""
    step = adam(learning_rate, **options)

    def clipped(params, examples):
        scales = [clipping([example], max_norm) for example in examples]
        return step(
            params, [[s * g for g in example] for s, example in zip(scales, examples, strict=True)]
        )

    return clipped


def clipping(examples, limit):
    """What scales the mean gradient to norm `limit`, where it is longer."""
    squares = 0.0
    for i in range(len(examples[0])):
        mean = average([example[i] for example in examples])
        squares = (mean * mean).sum() + squares
    return (limit / squares.sqrt()).at_most(1.0)


def moving(average_before, value, decay):
    """The exponential moving average, which starts from zero."""
    new = (1 - decay) * value
    return new if average_before is None else decay * average_before + new


def rates_of(learning_rate):
    """The learning rates of the steps; a schedule is a function of the number of steps before."""
    count = 0
    while True:
        yield learning_rate(count) if callable(learning_rate) else learning_rate
        count += 1


def warm_cosine(peak, warmup, steps, unit):
    """Linear from zero to `peak`, then half a cosine down to zero."""

    def at(count):
        wave = 1 + math.cos(math.pi * (count - warmup) / (steps - warmup))
        rate = peak * count / warmup if count < warmup else peak * wave / 2
        # Of the cosine's argument, up to pi, two roundings; five more of what is up to the peak.
        return Rounded(np.float64(rate), 12 * unit * peak, unit)

    return at
