"""MicroAdam by the paper's proxy: squares of each position's share of an example's gradient."""

from collections.abc import Mapping
from typing import Any

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from hlo_surgery.optimizers.required import with_statistics

NAME = "per_token_second_moment"
# Made once: two of a kind do not count as the same, and hyperparameters that are injected make the
# optimizer anew at each update.
STATISTICS = {NAME: hs.per_token_second_moment()}


def micro_adam_by_tokens(rate: Any, **settings: Any) -> Any:
    """`micro_adam`, told the proxy for its second moment."""
    inner = ho.micro_adam(rate, **settings)

    def update(updates: Any, state: Any, params: Any, given: Mapping[str, Any]) -> Any:
        proxy = {"second_moment": given[NAME], "batch_size": given["batch_size"]}
        return inner.update(updates, state, params, **proxy)

    return with_statistics(STATISTICS, inner.init, update)
