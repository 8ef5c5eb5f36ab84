"""The algorithms of Roulet and Agarwala line by line, in NumPy: no JAX, and nothing of the package.

"Detailed pseudocode" has Adam's family, "Where should you place the sign in SignSGD?" the signs,
"Experimental details" the decay of weights. Where the paper does not agree with itself:

- *eps*: the pseudocode divides by sqrt(eps + v), the text of MSQ by sqrt(relu(v)) + eps, with eps =
  1e-6. `eps_inside` chooses. The text is the default: MSQ's gradients are clipped to elements of
  1e-6, squares of 1e-12, beside which an eps of 1e-6 inside the root would be all there is. optax's
  Adam, the paper's codebase's, has it outside too.
- *B / (1 - B)* in the pseudocode of Var and MSQ is negative, so that Var's v would be, and MSQ's be
  sigma**2. The equation of the unbiased estimators is taken: sigma**2 = (mean of squares - square
  of mean) / (1 - 1 / B), mu**2 = (square of mean - mean of squares / B) / (1 - 1 / B).
- *Decay* is in the text alone: omega times the parameters, not times the learning rate.

And where it says nothing: the EMAs of signs have no bias correction, and clipping the mean gradient
scales each example's by the same factor.
"""

import numpy as np


def estimates(g):
    """nu by variant, of the examples' gradients [B, *parameter]."""
    size = len(g)
    square_of_mean, mean_of_squares = g.mean(0) ** 2, (g**2).mean(0)
    return {
        "adam": square_of_mean,
        "micro_adam": mean_of_squares,
        "micro_adam_var": (mean_of_squares - square_of_mean) / (1 - 1 / size),
        "micro_adam_msq": (square_of_mean - mean_of_squares / size) / (1 - 1 / size),
    }


def adam_family(variant, theta, gradients, etas, omega, b1, b2, eps, eps_inside, clip_norm):
    """The parameters after each step. `gradients(theta)`: [B, P]."""
    m, v, found = np.zeros_like(theta), np.zeros_like(theta), []
    for t, eta in enumerate(etas, 1):
        g = gradients(theta)
        if clip_norm is not None:
            g = g * min(1.0, clip_norm / np.linalg.norm(g.mean(0)))
        m = b1 * m + (1 - b1) * g.mean(0)
        v = b2 * v + (1 - b2) * estimates(g)[variant]
        m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
        if variant == "micro_adam_msq":
            v_hat = np.maximum(0, v_hat)
        u = m_hat / (np.sqrt(eps + v_hat) if eps_inside else np.sqrt(v_hat) + eps)
        theta = theta - eta * u - omega * theta
        found.append(theta)
    return found


def sign_family(variant, theta, gradients, etas, omega, beta):
    """SignEMA = sign o EMA o avg, SignSGD = EMA o sign o avg, MicroSignSGD = EMA o avg o sign."""
    ema, found = np.zeros_like(theta), []
    for eta in etas:
        g = gradients(theta)
        averaged = {
            "sign_ema": g.mean(0),
            "sign_sgd": np.sign(g.mean(0)),
            "micro_sign_sgd": np.sign(g).mean(0),
        }[variant]
        ema = beta * ema + (1 - beta) * averaged
        u = np.sign(ema) if variant == "sign_ema" else ema
        theta = theta - eta * u - omega * theta
        found.append(theta)
    return found


def warm_cosine(peak, warmup, steps):
    """Linear from zero to `peak`, and by half a cosine down to zero: eta of each step."""
    k = np.arange(steps)
    falling = peak * (1 + np.cos(np.pi * (k - warmup) / (steps - warmup))) / 2
    return np.where(k < warmup, peak * k / warmup, falling)
