"""Checkpoints: all that a run needs to go on as if it had never stopped."""

from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp  # pyright: ignore[reportMissingImports]

KEPT = 2


class Checkpoints:
    """The last states of a run, in a folder; each process keeps what its devices hold."""

    def __init__(self, folder: Path) -> None:
        # A step takes the memory of the state before it, so that saving must be done by then.
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, step: int, state: Any) -> None:
        """Keep the state with which this step begins."""
        self._manager.save(step, args=ocp.args.StandardSave(state))

    def last(self, like: Any) -> tuple[int, Any] | None:
        """The last state and its step, where there is one; `like` has its shapes and shardings."""
        step = self._manager.latest_step()
        if step is None:
            return None
        return step, self._manager.restore(step, args=ocp.args.StandardRestore(like))
