"""Of the whole repository: without PyTorch, what imports it is not collected."""

from importlib.util import find_spec

NEED_TORCH = ["hlo_surgery/torch/*", "tests/pytorch/single_examples.py"]
collect_ignore_glob = [] if find_spec("torch") else NEED_TORCH
