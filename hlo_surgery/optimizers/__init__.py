"""Optimizers of Roulet and Agarwala as in optax, some with statistics of the examples' gradients;
and Sophia and K-FAC, with their curvature from such statistics.

Each is an `optax.GradientTransformationExtraArgs`. Its attribute `required_statistics` names the
statistics that its `update` takes as keywords, next to `batch_size`, the number of examples that
the gradient is the mean of; `hlo_surgery.train_step` passes both. Learning rates are numbers or
schedules, as in optax. State is kept in at least float32, whatever the parameters. Needs optax:
`pip install '.[optim]'`.

In a chain, what reads the examples' gradients comes before what changes the gradient, which it
would not see: `required_statistics(optimizer, params)` and `train_step` raise ValueError where it
does not, and so does `update` where the gradient is passed as `grad` too.

>>> import hlo_surgery as hs, jax, jax.numpy as jnp
>>> optimizer, params = micro_adam(0.1, b2=0.95), jnp.ones(2)
>>> f = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=optimizer.required_statistics)
>>> gradient, statistics = f(params, jnp.array([[1.0, 4.0], [1.0, -2.0]]))
>>> state = optimizer.init(params)
>>> updates, state = optimizer.update(gradient, state, params, **statistics, batch_size=2)
>>> [round(float(u), 4) for u in updates]  # -0.1 * 1 / sqrt(1) and -0.1 * 1 / sqrt((16 + 4) / 2)
[-0.1, -0.0316]

The decay of weights is decoupled and, as in the paper, not multiplied by the learning rate: a step
subtracts `weight_decay * params`. It may be a schedule of its own, and should follow the learning
rate's where that goes to zero, or the weights do. The paper's schedule is
`optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps)`.
"""

from importlib.util import find_spec

if find_spec("optax") is None:
    raise ImportError(
        "hlo_surgery.optimizers needs optax, which is not installed: pip install '.[optim]'"
    )

from hlo_surgery.optimizers.adam import adam, micro_adam, micro_adam_msq, micro_adam_var
from hlo_surgery.optimizers.aggregators import clip_examples
from hlo_surgery.optimizers.asking import multi_steps, required_statistics
from hlo_surgery.optimizers.curvature import kfac, sophia, with_curvature
from hlo_surgery.optimizers.learning_rates import batch_size_rule
from hlo_surgery.optimizers.moments import (
    track_moments,
    track_noise_scale,
    tracked_moments,
    tracked_noise_scale,
)
from hlo_surgery.optimizers.private import dp_adam, dp_sgd, private_gradient
from hlo_surgery.optimizers.signs import micro_sign_sgd, sign_ema, sign_sgd
from hlo_surgery.public_function import publish

__all__ = [
    "adam",
    "batch_size_rule",
    "clip_examples",
    "dp_adam",
    "dp_sgd",
    "kfac",
    "micro_adam",
    "micro_adam_msq",
    "micro_adam_var",
    "micro_sign_sgd",
    "multi_steps",
    "private_gradient",
    "required_statistics",
    "sign_ema",
    "sign_sgd",
    "sophia",
    "track_moments",
    "track_noise_scale",
    "tracked_moments",
    "tracked_noise_scale",
    "with_curvature",
]
publish(globals(), __all__)
